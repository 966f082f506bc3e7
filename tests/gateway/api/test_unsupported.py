"""The table of what is not there yet."""

import pytest

from gateway.api.unsupported import REFUSED_ENDPOINTS, REFUSED_FIELDS, refuse_unsupported
from protocol.errors import InvalidRequest
from protocol.wire.sampling import SamplingParams
from protocol.wire.schema import describe


def test_no_field_is_both_known_and_refused() -> None:
    known = {name for row in describe(SamplingParams) for name in (row.name, *row.spec.aliases)}
    assert not known & set(REFUSED_FIELDS)


@pytest.mark.parametrize("field", sorted(REFUSED_FIELDS))
def test_null_asks_for_nothing(field: str) -> None:
    refuse_unsupported({field: None})


@pytest.mark.parametrize("field", sorted(REFUSED_FIELDS))
def test_a_refused_field_is_named(field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        refuse_unsupported({"prompt": "a", field: {"type": "json_object", "x": 1}})
    assert caught.value.param == field
    assert caught.value.message.startswith(f"Field '{field}': ")
    assert caught.value.message.endswith(" not supported yet")


@pytest.mark.parametrize("field", ["guided_json", "guided_choice", "structured_outputs"])
def test_vllms_constraints_name_what_to_say_instead(field: str) -> None:
    with pytest.raises(InvalidRequest, match="say response_format, json_schema or grammar"):
        refuse_unsupported({"messages": [], field: {"choice": ["yes", "no"]}})
    refuse_unsupported({field: {}, "guided_decoding_backend": "auto"})


@pytest.mark.parametrize(
    "field",
    [
        *("metadata", "store", "service_tier", "safety_identifier"),
        *("prompt_cache_retention", "prompt_cache_options", "n_cache_reuse", "prediction"),
        *("parse_tool_calls", "verbosity", "audio", "suffix", "tokenize", "unheard_of"),
    ],
)
def test_harmless_and_unknown_fields_pass(field: str) -> None:
    refuse_unsupported({field: "x"})


def test_every_endpoint_has_methods() -> None:
    assert all(methods and what for methods, what in REFUSED_ENDPOINTS.values())


def test_the_default_may_be_said() -> None:
    refuse_unsupported({"modalities": ["text"], "function_call": "auto"})
