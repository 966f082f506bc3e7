"""What the custom kinds of our manifests may hold, as JSON Schema: only the fields that are used.

Written from the documentation of the kinds: KEDA's ScaledObject and its Prometheus trigger, the
Prometheus operator's ServiceMonitor, the InferencePool of the Gateway API inference extension. A
field that is not here is refused, so a new one is looked up in the kind's reference first. The
cluster fills in what may be left out, and refuses what is misspelt or of another type.
"""

from typing import Any

Schema = dict[str, Any]
_TEXT: Schema = {"type": "string", "minLength": 1}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
_TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
_SPAN: Schema = {"type": "string", "pattern": r"^(0|([0-9]+(ms|[ywdhms]))+)$"}
_NUMBER: Schema = {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]+)?$"}


def _of(needed: str = "", **fields: Schema) -> Schema:
    """Return the schema of an object with these fields, of which some are needed."""
    properties: Schema = {"type": "object", "properties": fields, "additionalProperties": False}
    return {**properties, "required": needed.split()}


def _list(item: Schema, most: int = 1000) -> Schema:
    return {"type": "array", "items": item, "minItems": 1, "maxItems": most}


def _kind(version: str, kind: str, spec: Schema) -> Schema:
    metadata = _of("name", name=_TEXT, namespace=_TEXT, labels=_TEXTS, annotations=_TEXTS)
    named: Schema = {"apiVersion": {"const": version}, "kind": {"const": kind}}
    return _of("apiVersion kind metadata spec", **named, metadata=metadata, spec=spec)


_SELECTOR = _of("matchLabels", matchLabels=_TEXTS)
_POLICY = _of(
    "type value periodSeconds",
    type={"enum": ["Pods", "Percent"]},
    value=_COUNT,
    periodSeconds={"type": "integer", "minimum": 1, "maximum": 1800},
)
_RULES = _of(
    stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600},
    selectPolicy={"enum": ["Max", "Min", "Disabled"]},
    policies=_list(_POLICY),
)
_TRIGGER = _of(
    "type metadata",
    type={"const": "prometheus"},
    name=_TEXT,
    metricType={"enum": ["AverageValue", "Value"]},
    metadata=_of(
        "serverAddress query threshold",
        serverAddress=_TEXT,
        query=_TEXT,
        threshold=_NUMBER,  # values of a trigger are texts
        activationThreshold=_NUMBER,
    ),
)
_ENDPOINT = _of(
    "port path",
    port=_TEXT,
    path={"type": "string", "pattern": "^/"},
    interval=_SPAN,
    scrapeTimeout=_SPAN,
    authorization=_of(
        "credentials", type=_TEXT, credentials=_of("name key", name=_TEXT, key=_TEXT)
    ),
)

KINDS: dict[str, Schema] = {
    "ScaledObject": _kind(
        "keda.sh/v1alpha1",
        "ScaledObject",
        _of(
            "scaleTargetRef triggers",
            scaleTargetRef=_of("name", apiVersion=_TEXT, kind=_TEXT, name=_TEXT),
            minReplicaCount=_COUNT,
            maxReplicaCount={"type": "integer", "minimum": 1},
            idleReplicaCount=_COUNT,
            pollingInterval={"type": "integer", "minimum": 1},
            cooldownPeriod=_COUNT,
            fallback=_of("failureThreshold replicas", failureThreshold=_COUNT, replicas=_COUNT),
            advanced=_of(
                horizontalPodAutoscalerConfig=_of(
                    behavior=_of(scaleUp=_RULES, scaleDown=_RULES), name=_TEXT
                )
            ),
            triggers=_list(_TRIGGER),
        ),
    ),
    "ServiceMonitor": _kind(
        "monitoring.coreos.com/v1",
        "ServiceMonitor",
        _of("selector endpoints", selector=_SELECTOR, endpoints=_list(_ENDPOINT)),
    ),
    "InferencePool": _kind(
        "inference.networking.k8s.io/v1",
        "InferencePool",
        _of(
            "selector targetPorts endpointPickerRef",
            selector=_SELECTOR,
            targetPorts=_list(_of("number", number=_PORT), most=8),
            endpointPickerRef=_of(
                "name port",  # the port is needed for a Service, which the default kind is
                name=_TEXT,
                port=_of("number", number=_PORT),
                failureMode={"enum": ["FailOpen", "FailClose"]},
            ),
        ),
    ),
}
