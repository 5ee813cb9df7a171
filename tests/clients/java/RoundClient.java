import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's own producer or consumer in rounds of faults; what is told on either side says tests/mixed/java_clients.py.
 * Commands come in lines: "go" and "hold" for the producer; the end of the input ends either.
 */
public final class RoundClient {
    /** Batches that a leader of either kind remembers of a producer. */
    private static final int REMEMBERED = 5;

    /**
     * Numbers of a partition's records that are not acknowledged. The producer keeps to five batches in flight at a
     * connection, not at a partition: where a leader that was replaced does not answer, any number may be acknowledged
     * by the new one, and the first, sent again, lies too far back for Kafka's leader, who refuses it for ever. So at
     * most so many records lie between the first that is not acknowledged and the next, each a batch at worst.
     */
    private static final class Open {
        private final TreeSet<Integer> numbers = new TreeSet<>();
        private int next = 0;

        /** The next number, or -1 while the first that is open is too far back. */
        synchronized int take() {
            if (!numbers.isEmpty() && next - numbers.first() >= REMEMBERED) {
                return -1;
            }
            numbers.add(next);
            return next++;
        }

        synchronized void done(int number) {
            numbers.remove(number);
        }
    }

    private static volatile String command = "";

    private static synchronized void tell(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static void listen() {
        Thread reader = new Thread(() -> {
            try (BufferedReader input = new BufferedReader(new InputStreamReader(System.in))) {
                for (String line = input.readLine(); line != null; line = input.readLine()) {
                    command = line.trim();
                }
            } catch (java.io.IOException error) {
                tell("failed reading commands: " + error);
            }
            command = "end";
        });
        reader.setDaemon(true);
        reader.start();
    }

    private static Properties options(JsonNode settings) {
        Properties options = new Properties();
        settings.get("options").fields().forEachRemaining(each -> options.put(each.getKey(), each.getValue().asText()));
        return options;
    }

    private static void produce(JsonNode settings) throws InterruptedException {
        List<TopicPartition> places = new ArrayList<>();
        settings.get("topics").fields().forEachRemaining(topic -> {
            for (int partition = 0; partition < topic.getValue().asInt(); partition++) {
                places.add(new TopicPartition(topic.getKey(), partition));
            }
        });
        String name = settings.get("name").asText();
        String filling = ".".repeat(settings.get("filling").asInt());
        Random random = new Random(1);
        Map<TopicPartition, Open> open = new HashMap<>();
        places.forEach(place -> open.put(place, new Open()));
        ByteArraySerializer plain = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(options(settings), plain, plain)) {
            boolean held = true;
            while (!command.equals("end")) {
                if (command.equals("hold") && !held) {
                    producer.flush();
                    tell("held");
                    held = true;
                }
                if (!command.equals("go")) {
                    Thread.sleep(10);
                    continue;
                }
                held = false;
                for (int count = 0; count < 8; count++) {
                    TopicPartition place = places.get(random.nextInt(places.size()));
                    Open there = open.get(place);
                    int number = there.take();
                    if (number < 0) {
                        continue;
                    }
                    String said = name + ":" + place.partition() + ":" + number + ":";
                    byte[] value = (said + filling).getBytes(StandardCharsets.US_ASCII);
                    producer.send(
                        new ProducerRecord<>(place.topic(), place.partition(), null, value),
                        (done, error) -> {
                            there.done(number);
                            String which = place.topic() + " " + place.partition();
                            tell(error == null
                                ? "acked " + which + " " + done.offset() + " " + number
                                : "failed " + which + " " + number + ": " + error);
                        });
                }
                Thread.sleep(20);
            }
        }
    }

    private static void consume(JsonNode settings) {
        List<String> topics = new ArrayList<>();
        settings.get("topics").forEach(topic -> topics.add(topic.asText()));
        ByteArrayDeserializer plain = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(options(settings), plain, plain)) {
            consumer.subscribe(topics);
            long committedAt = System.nanoTime();
            while (!command.equals("end")) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    tell("saw " + record.topic() + " " + record.partition() + " " + record.offset() + " "
                        + new String(record.value(), StandardCharsets.US_ASCII));
                }
                if (System.nanoTime() - committedAt > 1_000_000_000L) {
                    commit(consumer);
                    committedAt = System.nanoTime();
                }
            }
        }
    }

    private static void commit(KafkaConsumer<byte[], byte[]> consumer) {
        Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
        try {
            for (TopicPartition place : consumer.assignment()) {
                positions.put(place, new OffsetAndMetadata(consumer.position(place, Duration.ofMillis(100))));
            }
            consumer.commitSync(positions, Duration.ofSeconds(8));
        } catch (KafkaException | IllegalStateException error) {
            return; // a rebalance, or the coordinator is gone: the next one
        }
        positions.forEach((place, position) ->
            tell("committed " + place.topic() + " " + place.partition() + " " + position.offset()));
    }

    public static void main(String[] arguments) throws Exception {
        JsonNode settings = new ObjectMapper().readTree(arguments[0]);
        listen();
        if (settings.get("mode").asText().equals("produce")) {
            produce(settings);
        } else {
            consume(settings);
        }
    }
}
