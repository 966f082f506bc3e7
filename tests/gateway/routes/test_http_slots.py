"""POST /slots/{id_slot}, /lora-adapters, POST /props and `system_prompt` over HTTP."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.wire.facts import SystemPrompt
from protocol.wire.messages import Envelope, Failed, Generate
from protocol.wire.side_tasks import SetLora, SetSystemPrompt, SlotAction
from tests.fakes.echo import FakeOptions
from tests.gateway.inprocess import Running, running, until

OFFERS: dict[str, Any] = {"saves_slots": True, "n_lora": 2}
DIALOG = {"prompt": "A dialog.\nUser:", "anti_prompt": "User:", "assistant_name": "Bot:"}


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Running]:
    """Two workers of two slots each."""
    async with running(tmp_path) as gateway:
        for name in ("w0", "w1"):
            await gateway.add_worker(FakeOptions(name=name, **OFFERS))
        yield gateway


def message_of(response: Any, status: int = 400) -> str:
    assert response.status_code == status, response.text
    return str(response.json()["error"]["message"])


# ---- slots ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        ("save", {"n_saved": 5, "n_written": 40, "timings": {"save_ms": 1.5}}),
        ("restore", {"n_restored": 5, "n_read": 40, "timings": {"restore_ms": 1.5}}),
    ],
)
async def test_save_and_restore_go_to_the_worker_of_the_slot(
    pair: Running, action: str, answer: dict[str, Any]
) -> None:
    response = await pair.post(f"/slots/3?action={action}", {"filename": "story"})
    assert response.json() == {"id_slot": 3, "filename": "story"} | answer
    first, second = pair.workers
    assert not any(isinstance(task, SlotAction) for task in first.received)
    ((_, asked, slot),) = second.envelopes
    assert isinstance(asked, SlotAction)
    assert (asked.action, slot, asked.filename) == (action, 1, "story")


async def test_with_two_keys_each_has_files_and_a_namespace_of_its_own(tmp_path: Path) -> None:
    async with running(tmp_path, api_key_admin=("a", "b")) as gateway:
        worker = await gateway.add_worker(FakeOptions(name="w0", **OFFERS))
        for key, body in (("a", {}), ("b", {}), ("a", {"cache_salt": "x"})):
            headers = {"Authorization": f"Bearer {key}"}
            path, file = "/slots/0?action=save", {"filename": "story"}
            answer = await gateway.client.post(path, json=file | body, headers=headers)
            assert answer.status_code == 200, answer.text
        asked = [task for task in worker.received if isinstance(task, SlotAction)]
    (mine, yours, split) = asked
    assert mine.owner == split.owner != yours.owner
    assert len({"", mine.salt, yours.salt, split.salt}) == 4


async def test_without_keys_slots_and_files_are_common(pair: Running) -> None:
    await pair.post("/slots/0?action=save", {"filename": "story"})
    asked = next(task for task in pair.workers[0].received if isinstance(task, SlotAction))
    assert (asked.owner, asked.salt) == ("", "")


async def test_an_action_that_names_a_model_goes_to_its_slots(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        for name in ("a", "b"):
            await gateway.add_worker(FakeOptions(name=name, model=name, **OFFERS))
        for number, query, body in (
            (0, "", {"model": "b"}),
            (1, "&model=b", {}),
            (3, "", {"model": "b"}),
        ):
            path = f"/slots/{number}?action=save{query}"
            answer = await gateway.post(path, {"filename": "story"} | body)
            assert answer.json()["id_slot"] == number
        assert [slot for _, _, slot in gateway.workers[1].envelopes] == [0, 1, 1]
        beyond = await gateway.post("/slots/4?action=erase&model=b", {})
        assert message_of(beyond) == "Invalid slot ID"


async def test_erase_needs_no_body(pair: Running) -> None:
    response = await pair.client.post("/slots/0?action=erase")
    assert response.json() == {"id_slot": 0, "n_erased": 0}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/slots/x?action=save", "Invalid slot ID"),
        ("/slots/-1?action=save", "Invalid slot ID"),
        ("/slots/4?action=save", "Invalid slot ID"),
        ("/slots/99999999999999999999?action=save", "Invalid slot ID"),
        ("/slots/0?action=steal", "Invalid action"),
        ("/slots/0", "Invalid action"),
    ],
)
async def test_a_wrong_slot_or_action_is_named(pair: Running, path: str, message: str) -> None:
    assert message_of(await pair.post(path, {"filename": "story"})) == message


@pytest.mark.parametrize(
    "name",
    ["", "../story", "a/b", "/etc/passwd", "..", ".", " a", "a.", "a\nb", "C:\\x", 7, "x" * 256],
)
async def test_a_name_that_leaves_the_folder_is_refused(pair: Running, name: object) -> None:
    response = await pair.post("/slots/0?action=save", {"filename": name})
    assert message_of(response) == "Invalid filename"


async def test_a_missing_name_is_named(pair: Running) -> None:
    assert message_of(await pair.post("/slots/0?action=save", {})) == "key 'filename' not found"


async def test_a_file_that_cannot_be_restored_is_a_400(pair: Running) -> None:
    response = await pair.post("/slots/0?action=restore", {"filename": "broken"})
    assert message_of(response).startswith("Unable to restore slot: ")


async def test_without_a_folder_the_answer_names_the_flag(gateway: Running) -> None:
    response = await gateway.post("/slots/0?action=save", {"filename": "story"})
    text = "This server does not support slots action. Start it with `--slot-save-path`"
    assert message_of(response, 501) == text


async def test_the_slot_of_a_worker_that_is_gone_is_not_waited_for(pair: Running) -> None:
    await pair.workers[1].leave()
    await until(lambda: pair.pool.health().n_workers == 1)
    response = await pair.post("/slots/2?action=save", {"filename": "story"})
    assert message_of(response, 503) == "The worker of slot 2 is not ready"


# ---- adapters ---------------------------------------------------------------------------------


async def test_adapters_are_listed(pair: Running) -> None:
    response = await pair.client.get("/lora-adapters")
    assert response.json() == [
        {"id": i, "path": f"/lora/{i}.gguf", "scale": 1.0, "task_name": "t", "prompt_prefix": ""}
        for i in range(2)
    ]


async def test_a_model_without_adapters_has_an_empty_list(gateway: Running) -> None:
    assert (await gateway.client.get("/lora-adapters")).json() == []


async def test_scales_reach_every_worker_and_those_to_come(pair: Running) -> None:
    response = await pair.post("/lora-adapters", [{"id": 1, "scale": 0.5}])
    assert response.json() == {"success": True}
    assert [worker.engine.scales for worker in pair.workers] == [[0.0, 0.5]] * 2
    late = await pair.add_worker(FakeOptions(name="w2", **OFFERS))
    await late.got(SetLora)
    assert late.engine.scales == [0.0, 0.5]


async def test_a_setting_that_a_worker_cannot_apply_is_named(
    pair: Running, caplog: pytest.LogCaptureFixture
) -> None:
    await pair.post("/lora-adapters", [{"id": 1, "scale": 0.5}])
    await pair.post("/completion", {"system_prompt": DIALOG})
    late = await pair.add_worker(FakeOptions(name="w2", **OFFERS))
    await late.got(SetLora)
    await late.got(SetSystemPrompt)
    failed = Failed(code=ErrorCode.INTERNAL, message="no memory")
    orders = [
        envelope
        for envelope in late.envelopes
        if isinstance(envelope.payload, SetLora | SetSystemPrompt)
    ]
    await late.send(*(Envelope(order.task, failed) for order in orders))
    await until(lambda: len(_unapplied(caplog)) == 2)
    told = [(line.__dict__["worker"], line.__dict__["setting"]) for line in _unapplied(caplog)]
    assert told == [("w2", "LoRA scales"), ("w2", "system prompt")]


def _unapplied(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [line for line in caplog.records if line.message == "setting not applied"]


async def test_an_empty_array_turns_all_adapters_off(pair: Running) -> None:
    await pair.post("/lora-adapters", [])
    assert [worker.engine.scales for worker in pair.workers] == [[0.0, 0.0]] * 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Request body must be an array"),
        ("x", "Request body must be an array"),
        ([1], "Request body: each entry must be an object with 'id' and 'scale'"),
        ([{"id": 0, "scale": "1"}], "Request body: each entry must be an object"),
        ([{"id": 2, "scale": 1}], "no adapter has the id 2; 0 to 1 are loaded"),
    ],
)
async def test_a_wrong_list_of_scales_is_named(pair: Running, body: object, message: str) -> None:
    assert message in message_of(await pair.post("/lora-adapters", body))


async def test_a_request_brings_scales_of_its_own_and_sees_them_again(pair: Running) -> None:
    lora = [{"id": 0, "scale": 0.25}]
    response = await pair.post("/completion", {"prompt": "a b", "lora": lora})
    assert response.json()["generation_settings"]["lora"] == lora
    asked = [task for worker in pair.workers for task in worker.received if type(task) is Generate]
    assert asked[0].params.lora == ((0, 0.25),)


# ---- properties -------------------------------------------------------------------------------


async def test_props_cannot_be_changed_without_the_flag(gateway: Running) -> None:
    text = "This server does not support changing global properties. Start it with `--props`"
    assert message_of(await gateway.post("/props", {}), 501) == text


async def test_with_the_flag_there_is_nothing_to_change(tmp_path: Path) -> None:
    async with running(tmp_path, props=True) as gateway:
        await gateway.add_worker()
        assert (await gateway.post("/props", {})).json() == {"success": True}
        assert (await gateway.client.get("/props")).json()["endpoint_props"] is True


# ---- system prompt ----------------------------------------------------------------------------


async def test_a_system_prompt_reaches_every_worker_and_those_to_come(pair: Running) -> None:
    response = await pair.post("/completion", {"prompt": "a b", "system_prompt": DIALOG})
    assert response.json()["content"] == "a b"
    assert [worker.engine.system for worker in pair.workers] == ["A dialog.\nUser:"] * 2
    shown = (await pair.client.get("/props")).json()
    assert (shown["user_name"], shown["assistant_name"]) == ("User:", "Bot:")
    late = await pair.add_worker(FakeOptions(name="w2", **OFFERS))
    await late.got(SetSystemPrompt)
    assert late.engine.system == "A dialog.\nUser:"


async def test_a_system_prompt_may_come_alone(pair: Running) -> None:
    response = await pair.post("/completion", {"system_prompt": DIALOG})
    assert response.status_code == 200, response.text
    assert response.json()["tokens_predicted"] == 0
    assert (await pair.client.get("/props")).json()["assistant_name"] == DIALOG["assistant_name"]
    assert (await pair.post("/completion", {"n_predict": 1})).status_code == 400


async def test_an_empty_system_prompt_takes_it_away(pair: Running) -> None:
    for prompt in (DIALOG, {"prompt": ""}, None):
        await pair.post("/completion", {"prompt": "a b", "system_prompt": prompt})
    assert [worker.engine.system for worker in pair.workers] == ["", ""]
    assert (await pair.client.get("/props")).json()["user_name"] == ""


async def test_a_system_prompt_that_one_worker_refuses_changes_none(tmp_path: Path) -> None:
    async with running(tmp_path) as pool:
        await pool.add_worker(FakeOptions(name="w0"))
        await pool.add_worker(FakeOptions(name="w1", longest_system_prompt=10))
        for text, status in (("short", 200), ("too long for one", 400)):
            body = {"prompt": "a", "system_prompt": text}
            assert (await pool.post("/completion", body)).status_code == status
        assert [worker.engine.system for worker in pool.workers] == ["short", "short"]


async def test_the_configured_names_are_shown_until_others_are_set(tmp_path: Path) -> None:
    configured = SystemPrompt(prompt="x", anti_prompt="You:", assistant_name="I:")
    async with running(tmp_path) as pool:
        await pool.add_worker(FakeOptions(system_prompt=configured))
        shown = (await pool.client.get("/props")).json()
        assert (shown["user_name"], shown["assistant_name"]) == ("You:", "I:")


@pytest.mark.parametrize(
    ("value", "param"),
    [
        (7, "system_prompt"),
        (["x"], "system_prompt"),
        ({"prompt": 7}, "system_prompt.prompt"),
        ({"prmpt": "x"}, "system_prompt.prmpt"),
    ],
)
async def test_a_wrong_system_prompt_is_named(pair: Running, value: object, param: str) -> None:
    response = await pair.post("/completion", {"prompt": "a", "system_prompt": value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_a_conversation_brings_no_shared_system_prompt(pair: Running) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "system_prompt": DIALOG}
    response = await pair.post("/v1/chat/completions", body)
    assert "system_prompt" in message_of(response)
