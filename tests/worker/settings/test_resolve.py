"""From configuration to processes: models, names, devices, threads, endpoints."""

import os
import select
import stat
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.config.config import GatewayConfig, PoolConfig, WorkerConfig, dump, load
from protocol.errors import ConfigError
from protocol.wire.sampling import SamplingParams
from tests.worker.hosts import flat
from worker.settings.resolve import chooses_models, find_model, pick, resolve
from worker.supervisor.children.launch import Launch, launches
from worker.supervisor.children.managed_child import ManagedChild
from worker.supervisor.runtime_directory import runtime_directory


def fake(**fields: object) -> WorkerConfig:
    return WorkerConfig(backend="fake", **fields)  # type: ignore[arg-type]


def pool(*workers: WorkerConfig, n_cores: int = 4, **fields: object) -> PoolConfig:
    config = PoolConfig(worker=workers, **fields)  # type: ignore[arg-type]
    return resolve(config, runtime_dir="/run/x", host=flat(n_cores))


def test_default_model_is_the_embedded_one_under_its_files_name() -> None:
    (worker,) = pool().worker
    assert worker.model.endswith(".gguf")
    assert worker.alias == Path(worker.model).stem
    assert worker.name == f"{worker.alias}-1"


def test_count_becomes_workers_with_names_of_their_own() -> None:
    tables = fake(alias="a/b", count=2), fake(name="solo"), fake(name="h/x", count=2)
    assert [w.name for w in pool(*tables).worker] == ["a-b-1", "a-b-2", "solo", "h/x-1", "h/x-2"]
    assert [worker.count for worker in pool(fake(count=3)).worker] == [1, 1, 1]


def test_resolving_again_changes_nothing(tmp_path: Path) -> None:
    once = pool(fake(count=2, devices="0,1", device_per_worker=True), n_cores=8)
    (tmp_path / "pool.json").write_text(dump(once))
    again = resolve(load(tmp_path / "pool.json"), runtime_dir="/run/x", host=flat(1))
    assert again == once


def test_a_schema_is_the_default_grammar_and_a_template_is_written_out(tmp_path: Path) -> None:
    once = pool(fake(json_schema='{"type": "null"}', chat_template="gemma"))
    (worker,) = once.worker
    assert 'root ::= "null"' in worker.sampling.grammar
    assert "<start_of_turn>" in worker.chat_template
    (tmp_path / "pool.json").write_text(dump(once))
    assert load(tmp_path / "pool.json").worker == once.worker


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"json_schema": '{"type": 5}'}, "json_schema: .*type must be a string"),
        ({"json_schema": "{"}, "json_schema: .*not JSON"),
        (
            {"json_schema": "{}", "sampling": SamplingParams(grammar="root ::= [a]")},
            "either json_schema or sampling.grammar",
        ),
        ({"chat_template": "{{ x }}", "jinja": False}, "--no-jinja takes .* chatml, "),
        ({"template_kwargs": "{"}, "--chat-template-kwargs must be a JSON object"),
        ({"template_kwargs": '{"enable_thinking": "no"}'}, "must be true or false"),
        ({"n_slots": 0}, "at least 1, or -1"),
        ({"n_ctx": 2**31 - 1}, "-c.* 2147483647 is more than any host"),
    ],
)
def test_what_no_text_can_follow_is_found_before_anything_starts(
    fields: dict[str, object], problem: str
) -> None:
    with pytest.raises(ConfigError, match=f"(?s){problem}"):
        pool(fake(**fields))


def test_twins_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 workers are named 'a'"):
        pool(fake(name="a"), fake(name="a"))


@pytest.mark.parametrize(("n_cores", "share"), [(8, 4), (3, 1), (1, 1)])
def test_cores_are_shared_between_the_workers(n_cores: int, share: int) -> None:
    workers = pool(fake(count=2), n_cores=n_cores).worker
    assert {worker.n_threads for worker in workers} == {share}
    assert {worker.n_threads_batch for worker in workers} == {share}


def test_threads_that_are_given_stand() -> None:
    (worker,) = pool(fake(n_threads=3), n_cores=8).worker
    assert (worker.n_threads, worker.n_threads_batch) == (3, 3)


def test_devices_are_handed_out_one_each() -> None:
    workers = pool(fake(count=2, devices="0, 3", device_per_worker=True)).worker
    assert [worker.devices for worker in workers] == ["0", "3"]
    with pytest.raises(ConfigError, match="3 workers, but devices '0,1' names 2"):
        pool(fake(count=3, devices="0,1", device_per_worker=True))


def test_workers_dial_the_gateways_socket() -> None:
    config = pool(fake())
    assert config.gateway.bind == ("ipc:///run/x/workers.sock",)
    assert config.worker[0].connect == config.gateway.bind


def test_of_several_sockets_of_the_gateway_a_worker_dials_the_first() -> None:
    config = pool(fake(), gateway=GatewayConfig(bind=("ipc://a", "ipc://b")))
    assert config.gateway.bind == ("ipc://a", "ipc://b")
    assert config.worker[0].connect == ("ipc://a",)


def test_a_worker_dials_every_gateway_that_it_is_told_of() -> None:
    assert pool(fake(connect=("ipc://a", "ipc://b"))).worker[0].connect == ("ipc://a", "ipc://b")


def test_each_of_several_gateways_has_an_endpoint_of_its_own() -> None:
    config = pool(fake(), gateway=GatewayConfig(gateways=3))
    assert config.worker[0].connect == (
        *("ipc:///run/x/workers.sock", "ipc:///run/x/workers-1.sock"),
        "ipc:///run/x/workers-2.sock",
    )


KEYS = GatewayConfig(curve_key_file="g.key", worker_keys="workers")


def test_a_gateway_that_is_open_to_other_hosts_keeps_a_socket_for_its_own() -> None:
    config = pool(fake(), gateway=replace(KEYS, bind=("tcp://0.0.0.0:5555", "tcp://[::1]:5556")))
    assert config.gateway.bind[-1] == "ipc:///run/x/workers.sock"
    assert config.worker[0].connect == ("ipc:///run/x/workers.sock",)
    assert resolve(config, runtime_dir="/run/x", host=flat(1)).gateway.bind == config.gateway.bind


@pytest.mark.parametrize(
    "gateway", [replace(KEYS, curve_key_file=""), replace(KEYS, worker_keys="")]
)
def test_tcp_without_keys_ends_the_start_of_a_gateway(gateway: GatewayConfig) -> None:
    with pytest.raises(ConfigError, match=r"bind 'tcp://h:1': tcp needs keys.*keygen"):
        pool(fake(), gateway=replace(gateway, bind=("tcp://h:1",)))


def test_tcp_without_keys_ends_the_start_of_a_worker() -> None:
    with pytest.raises(ConfigError, match=r"connect 'tcp://h:1': tcp needs keys.*keygen"):
        pool(fake(connect=("tcp://h:1",)))
    with pytest.raises(ConfigError, match="tcp needs keys"):
        pool(fake(connect=("ipc://a", "tcp://h:1"), curve_key_file="w.key"))
    worker = fake(connect=("tcp://h:1",), curve_key_file="w.key", gateway_keys=("g.pub",))
    assert pool(worker).worker[0].connect == ("tcp://h:1",)


def test_names_that_nobody_chose_differ_between_hosts() -> None:
    def names(config: PoolConfig, host: str) -> list[str]:
        resolved = resolve(config, runtime_dir="/run/x", host=flat(1, name=host))
        again = resolve(resolved, runtime_dir="/run/x", host=flat(1, name=host))
        assert again.worker == resolved.worker
        return [worker.name for worker in resolved.worker]

    config = PoolConfig(worker=(fake(count=2), fake(name="mine"), fake(name="ours", count=2)))
    assert names(config, "h1") == ["h1/fake-1", "h1/fake-2", "mine", "ours-1", "ours-2"]
    assert names(config, "")[:2] == ["fake-1", "fake-2"]
    resolved = resolve(config, runtime_dir="/run/x", host=flat(1, name="h1"))
    assert pick(resolved, "h1/fake-2") == pick(resolved, "fake-2")


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:5555", "inproc://x", "nonsense"])
def test_endpoints_without_curve_are_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="ipc://PATH"):
        pool(fake(), gateway=GatewayConfig(bind=(endpoint,)))
    with pytest.raises(ConfigError, match="connect"):
        pool(fake(connect=(endpoint,)))


def test_long_runtime_directory_is_refused() -> None:
    with pytest.raises(ConfigError, match="too long for a socket"):
        resolve(PoolConfig(worker=(fake(),)), runtime_dir="/run/" + "x" * 120, host=flat(1))


def test_bad_models_are_named_with_the_remedy(tmp_path: Path) -> None:
    text = tmp_path / "model.gguf"
    text.write_text("not a model")
    with pytest.raises(ConfigError, match=r"model\.gguf is not a GGUF file"):
        find_model(str(text))
    with pytest.raises(ConfigError, match=r"none\.gguf does not exist: check -m"):
        find_model(str(tmp_path / "none.gguf"))
    with pytest.raises(ConfigError, match=r"is a directory: name the \.gguf"):
        find_model(str(tmp_path))
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ConfigError, match=r"pipe\.gguf is a pipe"):
        find_model(str(tmp_path / "pipe.gguf"))


def test_pick_needs_a_name_only_among_several() -> None:
    one, two = pool(fake()), pool(fake(count=2))
    assert pick(one, "") is one.worker[0]
    assert pick(two, "fake-2") is two.worker[1]
    with pytest.raises(ConfigError, match="give --name; the configuration has fake-1, fake-2"):
        pick(two, "")
    with pytest.raises(ConfigError, match="no worker is named 'x'"):
        pick(two, "x")


def test_launches_start_the_gateway_first_and_name_devices(tmp_path: Path) -> None:
    config = pool(fake(devices="1", stall_s=2.0), fake(name="cpu"))
    environ = {
        "PATH": "x",
        "NOTIFY_SOCKET": "/ours",
        "OMP_WAIT_POLICY": "active",
        "LLAMA_API_KEY": "secret",
    }
    gateway, gpu, cpu = launches(config, tmp_path / "pool.json", environ)
    assert gateway.is_gateway
    assert not gpu.is_gateway
    assert gpu.env["CUDA_VISIBLE_DEVICES"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in cpu.env
    assert not {"NOTIFY_SOCKET", "LLAMA_API_KEY"} & gpu.env.keys()
    assert gpu.env["WATCHDOG_USEC"] == "2000000"
    assert gpu.env["OMP_WAIT_POLICY"] == "active"
    assert gpu.argv[-2:] == ("--name", "fake-1")


def test_keys_reach_the_gateway_alone_and_stand_on_no_command_line(tmp_path: Path) -> None:
    config = pool(fake(), gateway=GatewayConfig(api_key=("secret",)))
    gateway, worker = launches(config, tmp_path / "pool.json", {})
    assert b"secret" in gateway.stdin and gateway.argv[-1] == "--keys-on-stdin"
    assert worker.stdin == b""
    assert "secret" not in repr((gateway, worker)) + dump(config)
    open_one, _ = launches(pool(fake()), tmp_path / "pool.json", {})
    assert (open_one.stdin, open_one.argv[-1]) == (b"", str(tmp_path / "pool.json"))


def test_a_child_reads_what_it_is_given_on_standard_input(tmp_path: Path) -> None:
    secret = b"x" * 200_000
    for data in (secret, b""):
        program = "import sys; print(len(sys.stdin.buffer.read()), file=sys.stderr)"
        launch = Launch(name="c", argv=(sys.executable, "-c", program), env={}, stdin=data)
        child = ManagedChild(launch, tmp_path / "n.sock")
        child.spawn()
        while child.reap() is None:
            select.select([child.fds[1]], [], [], 0.05)
        _, written = child.close()
        assert written.decode().split() == [str(len(data))]


def test_workers_start_with_the_openmp_settings_of_their_place(tmp_path: Path) -> None:
    for n_threads, spins in ((2, "3000"), (4, "0")):
        config = pool(fake(count=2, n_threads=n_threads), n_cores=4)
        environ = {"OMP_PROC_BIND": "true"}
        gateway, one, two = launches(config, tmp_path / "pool.json", environ)
        for worker in (one, two):
            assert worker.env["OMP_NUM_THREADS"] == str(n_threads)
            assert worker.env["OMP_WAIT_POLICY"] == "passive"
            assert worker.env["GOMP_SPINCOUNT"] == spins
            assert worker.env["OMP_PROC_BIND"] == "false"
        assert "OMP_NUM_THREADS" not in gateway.env


def test_runtime_directory_is_private_and_goes_away() -> None:
    with runtime_directory("") as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "x").touch()
    assert not folder.exists()


def test_what_a_killed_process_left_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import os\n"
        "from worker.supervisor.runtime_directory import runtime_directory\n"
        "with runtime_directory('') as folder:\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # tmp_path may be too long for sockets
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        root = Path(__file__).parents[3]
        subprocess.run([sys.executable, "-c", code], cwd=root, check=False)
        (stale,) = Path(short).iterdir()
        with runtime_directory("") as first, runtime_directory("") as second:
            assert not stale.exists()
            assert first.exists()
            assert second.exists()
        assert list(Path(short).iterdir()) == []


def test_configured_runtime_directory_keeps_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "theirs").touch()
    tmp_path.chmod(0o700)
    with runtime_directory(str(tmp_path)) as folder:
        (folder / "ours").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


def test_runtime_directory_open_to_others_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match="chmod 0700"), runtime_directory(str(tmp_path)):
        pass


def test_the_first_alias_by_the_alphabet_is_the_models_name() -> None:
    (worker,) = pool(fake(alias="zed, alpha,,beta", tags=("a", "b"))).worker
    assert (worker.alias, worker.aliases) == ("alpha", ("alpha", "beta", "zed"))
    assert worker.tags == ("a", "b")
    assert worker.name == "alpha-1"


def test_a_model_takes_precedence_over_those_of_the_cache() -> None:
    for workers in ((), (fake(),), (fake(model="x.gguf"),), (fake(alias="x"),)):
        config = PoolConfig(gateway=GatewayConfig(models_on_demand=True), worker=workers)
        assert chooses_models(config) is (workers in ((), (fake(),)))
    assert not resolve(config, runtime_dir="/run/x", host=flat(4)).gateway.models_on_demand


@pytest.mark.parametrize("source", ["models_dir", "models_preset"])
def test_models_on_demand_leave_only_a_gateway_to_settle(source: str) -> None:
    config = PoolConfig(gateway=GatewayConfig(**{source: "/models"}), worker=(fake(n_ctx=7),))  # type: ignore[arg-type]  # a test's choice
    settled = resolve(config, runtime_dir="/run/x", host=flat(4))
    assert settled.gateway.control == "/run/x/control.sock"
    assert settled.gateway.models_on_demand
    assert settled.worker == (fake(n_ctx=7),)
    assert resolve(settled, runtime_dir="/run/x", host=flat(4)) == settled


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        ((fake(model="x.gguf"),), "model does not go with models_dir or models_preset"),
        ((fake(alias="x"),), "alias does not go with"),
        ((fake(), fake()), r"several \[\[worker\]\] tables"),
    ],
)
def test_models_on_demand_do_not_go_with_fixed_ones(
    workers: tuple[WorkerConfig, ...], words: str
) -> None:
    config = PoolConfig(gateway=GatewayConfig(models_dir="/models"), worker=workers)
    with pytest.raises(ConfigError, match=words):
        resolve(config, runtime_dir="/run/x", host=flat(4))


def test_the_automatic_number_of_slots_is_llama_servers() -> None:
    (worker,) = pool(WorkerConfig(backend="fake", n_slots=-1)).worker
    assert (worker.n_slots, worker.kv_unified) == (4, True)


@pytest.mark.parametrize(("n_ctx", "expected"), [(0, 600), (1024, 1024)])
def test_the_context_of_a_slot_sizes_that_of_all_unless_that_was_said(
    n_ctx: int, expected: int
) -> None:
    worker = WorkerConfig(backend="fake", n_slots=2, n_ctx=n_ctx, n_ctx_per_slot=300)
    assert pool(worker).worker[0].n_ctx == expected


def test_a_projector_that_is_not_there_is_named_as_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mmproj .*none does not exist: check --mmproj"):
        pool(WorkerConfig(mmproj=str(tmp_path / "none")))


def test_a_draft_model_is_found_from_here_for_its_worker_runs_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "draft.gguf").write_bytes(b"GGUF")
    worker = pool(WorkerConfig(model_draft="draft.gguf")).worker[0]
    assert worker.model_draft == str(tmp_path / "draft.gguf")
    with pytest.raises(ConfigError, match=r"model_draft .* does not exist: check -md"):
        pool(WorkerConfig(model_draft="nowhere.gguf"))


def test_a_model_whose_file_name_is_no_utf_8_has_a_name_all_the_same(tmp_path: Path) -> None:
    model = os.fsdecode(os.fsencode(tmp_path) + b"/m\xff.gguf")
    (worker,) = pool(fake(model=model)).worker
    assert (worker.alias, worker.model) == ("m\N{REPLACEMENT CHARACTER}", model)
