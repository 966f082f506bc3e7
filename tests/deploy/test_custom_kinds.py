"""The manifests of kinds that a cluster has only with an operator, field by field."""

from typing import Any

import pytest

from tests.deploy.custom_kinds import KINDS
from tests.deploy.test_kubernetes import CORE, OVERLAYS, of_kind, render


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_custom_kinds_are_valid(overlay: str) -> None:
    validate = pytest.importorskip("jsonschema").validate
    for one in render(overlay):
        if one["apiVersion"] not in CORE:
            validate(one, KINDS[one["kind"]])


@pytest.mark.parametrize(
    ("overlay", "kind", "path", "value"),
    [
        ("cuda", "ScaledObject", "spec.triggers.0.metadata.threshold", 4),
        ("cuda", "ScaledObject", "spec.triggers.0.metadata.treshold", "4"),
        ("cuda", "ScaledObject", "spec.maxReplicas", 4),
        ("cuda", "ScaledObject", "spec.minReplicaCount", "1"),
        ("cuda", "ServiceMonitor", "spec.endpoints.0.interval", "15"),
        ("cuda", "ServiceMonitor", "spec.endpoints.0.bearerToken", "secret"),
        ("cuda", "ServiceMonitor", "apiVersion", "monitoring.coreos.com/v2"),
        ("many-models", "InferencePool", "spec.targetPorts.0.number", 0),
        ("many-models", "InferencePool", "spec.endpointPickerRef.failureMode", "failOpen"),
        ("many-models", "InferencePool", "spec.extensionRef", {"name": "picker"}),
    ],
)
def test_a_wrong_custom_kind_is_refused(overlay: str, kind: str, path: str, value: object) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    (one,) = of_kind(render(overlay), kind)
    *way, last = path.split(".")
    place: Any = one
    for name in way:
        place = place[int(name)] if name.isdigit() else place[name]
    place[last] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(one, KINDS[kind])
