# A broker in a container; docker-compose.yml runs three of them.
#
#   docker build -t pybroker . && docker run -p 127.0.0.1:9092:9092 -v pybroker:/var/lib/pybroker pybroker
FROM python:3.12-slim AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --wheel-dir /wheels . \
    && python -m venv /opt/pybroker \
    && /opt/pybroker/bin/pip install --no-cache-dir --no-index --find-links /wheels pybroker

FROM python:3.12-slim
RUN useradd --system --uid 10001 --home-dir /var/lib/pybroker --create-home pybroker
COPY --from=build /opt/pybroker /opt/pybroker
ENV PATH=/opt/pybroker/bin:$PATH \
    KAFKA_LOG_DIRS=/var/lib/pybroker \
    KAFKA_LISTENERS=PLAINTEXT://:9092 \
    KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://localhost:9092
USER pybroker
VOLUME /var/lib/pybroker
EXPOSE 9092
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s CMD ["pybroker", "health"]
ENTRYPOINT ["pybroker"]
CMD ["start"]
