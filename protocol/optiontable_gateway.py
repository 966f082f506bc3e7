"""The options of the gateway and of the log: addresses, keys, pages, lines."""

from protocol.optiontypes import Option, option, read_flash, read_interval, read_one

GATEWAY_OPTIONS: tuple[Option, ...] = (
    option("gateway.host", "--host", env="HOST"),
    option("gateway.port", "--port", env="PORT"),
    option("gateway.timeout_s", "-to --timeout", env="TIMEOUT"),
    option("gateway.api_key", "--api-key", env="LLAMA_API_KEY"),
    option("gateway.api_key_file", "--api-key-file", env="API_KEY_FILE", parse=read_one),
    option("gateway.ssl_key_file", "--ssl-key-file", env="SSL_KEY_FILE"),
    option("gateway.ssl_cert_file", "--ssl-cert-file", env="SSL_CERT_FILE"),
    option("gateway.metrics", "--metrics", "--no-metrics", env="ENDPOINT_METRICS"),
    option("gateway.props", "--props", env="ENDPOINT_PROPS"),
    option("gateway.slots", "--slots", "--no-slots --slots-endpoint-disable", env="ENDPOINT_SLOTS"),
    option("gateway.ping_interval_s", "--sse-ping-interval", parse=read_interval),
    option("gateway.reuse_port", "--reuse-port"),
    option("gateway.api_prefix", "--api-prefix"),
    option("gateway.static_path", "--path", env="STATIC_PATH"),
    option("gateway.ui", "--ui --webui", "--no-ui --no-webui"),
    option("gateway.cors_origins", "--cors-origins"),
    option("gateway.cors_methods", "--cors-methods"),
    option("gateway.cors_headers", "--cors-headers"),
    option("gateway.cors_credentials", "--cors-credentials", "--no-cors-credentials"),
    option("log.verbosity", "-v --verbose --log-verbose", env="LOG_VERBOSE", value=10),
    option("log.verbosity", "-lv --verbosity --log-verbosity", env="LOG_VERBOSITY"),
    option("log.format", "--log-format"),
    option("log.format", "--log-jsonl", value="json"),
    option("log.file", "--log-file"),
    option("log.colors", "--log-colors", parse=read_flash, bare="on"),
    option("log.prefix", "--log-prefix", "--no-log-prefix"),
    option("log.timestamps", "--log-timestamps", "--no-log-timestamps"),
    option("log.access", "--log-disable", value=False),
)
