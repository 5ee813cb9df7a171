import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Kafka's own consumer; takes settings and tells what happens as tests/support/member.py does. */
public final class Member {
    private static final Map<String, String> ASSIGNORS = Map.of(
        "range", "org.apache.kafka.clients.consumer.RangeAssignor",
        "roundrobin", "org.apache.kafka.clients.consumer.RoundRobinAssignor",
        "sticky", "org.apache.kafka.clients.consumer.StickyAssignor",
        "cooperative-sticky", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
    private static final ObjectMapper JSON = new ObjectMapper();
    private static volatile boolean stopping = false;

    private static void tell(String event, Map<String, Object> facts) {
        Map<String, Object> line = new LinkedHashMap<>(facts);
        line.put("event", event);
        line.put("at", System.currentTimeMillis() / 1000.0);
        try {
            System.out.println(JSON.writeValueAsString(line));
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
        System.out.flush();
    }

    private static Properties options(JsonNode wanted) {
        Properties options = new Properties();
        options.put("bootstrap.servers", wanted.get("address").asText());
        options.put("group.id", wanted.get("group").asText());
        options.put("auto.offset.reset", "earliest");
        options.put("enable.auto.commit", "false");
        options.put("max.poll.records", "100");
        options.put("key.deserializer", ByteArrayDeserializer.class.getName());
        options.put("value.deserializer", ByteArrayDeserializer.class.getName());
        String assignor = wanted.get("assignor").asText();
        if (wanted.get("protocol").asText().equals("consumer")) {
            options.put("group.protocol", "consumer");
            options.put("group.remote.assignor", assignor);
        } else {
            int session = wanted.get("session_ms").asInt();
            options.put("session.timeout.ms", String.valueOf(session));
            options.put("heartbeat.interval.ms", String.valueOf(session / 10));
            options.put("partition.assignment.strategy", ASSIGNORS.get(assignor));
        }
        if (!wanted.get("instance").isNull()) {
            options.put("group.instance.id", wanted.get("instance").asText());
        }
        return options;
    }

    /** Tells the whole assignment whenever it has changed; a cooperative rebalance brings only what changes. */
    private static final class Assignment implements ConsumerRebalanceListener {
        private final TreeSet<Integer> partitions = new TreeSet<>();

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> come) {
            change(come, true);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> gone) {
            change(gone, false);
        }

        private void change(Collection<TopicPartition> changed, boolean come) {
            for (TopicPartition each : changed) {
                if (come) {
                    partitions.add(each.partition());
                } else {
                    partitions.remove(each.partition());
                }
            }
            if (!changed.isEmpty()) {
                tell("assigned", Map.of("partitions", partitions));
            }
        }
    }

    private static void handle(KafkaConsumer<byte[], byte[]> consumer, ConsumerRecords<byte[], byte[]> records) {
        Map<Integer, List<Long>> offsets = new LinkedHashMap<>();
        for (ConsumerRecord<byte[], byte[]> record : records) {
            offsets.computeIfAbsent(record.partition(), partition -> new ArrayList<>()).add(record.offset());
        }
        offsets.forEach((partition, each) -> tell("records", Map.of("partition", partition, "offsets", each)));
        if (offsets.isEmpty()) {
            return;
        }
        try {
            consumer.commitSync();
        } catch (KafkaException error) {
            tell("commit failed", Map.of("why", String.valueOf(error.getMessage())));
            return;
        }
        offsets.forEach((partition, each) ->
            tell("committed", Map.of("partition", partition, "offset", each.get(each.size() - 1) + 1)));
    }

    public static void main(String[] arguments) throws Exception {
        JsonNode wanted = JSON.readTree(arguments[0]);
        CountDownLatch closed = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stopping = true;
            try {
                closed.await();
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
            Runtime.getRuntime().halt(0); // otherwise the exit code is that of the signal
        }));
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(options(wanted))) {
            consumer.subscribe(List.of(wanted.get("topic").asText()), new Assignment());
            while (!stopping) {
                handle(consumer, consumer.poll(Duration.ofMillis(50)));
            }
        } finally {
            closed.countDown();
        }
    }
}
