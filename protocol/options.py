"""llama-server's flags and environment names, mapped to the fields of our configuration.

One row an option; type, limits and text come from the field itself. The command line, the reader
of `LLAMA_ARG_*` and the documents are made from this table. It knows nothing of any command-line
library. Names as in llama.cpp's `common/arg.cpp` and the seeds (aliases that it has dropped since).
"""

import re
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from protocol.config import GatewayConfig, PoolConfig, WorkerConfig
from protocol.errors import ConfigError, InvalidRequest
from protocol.sampling import SamplingParams
from protocol.schema import Row, check, describe

SECTIONS: Mapping[str, type] = {
    "gateway": GatewayConfig,
    "worker": WorkerConfig,
    "sampling": SamplingParams,
}
"""What the first half of an option's `field` stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One row: how a field is spelled on the command line and in the environment."""

    field: str
    """`<section>.<name>`."""
    flags: tuple[str, ...]
    off: tuple[str, ...] = ()
    """Flags that set a boolean to false."""
    env: str = ""
    parse: Callable[[str], Any] | None = None
    """Turns the text into the field's value; raises ValueError. None is by the field's type."""
    value: Any = None
    """What the flag sets, if it takes no argument."""
    bare: str = ""
    """The text that the flag stands for, if its argument may be left out."""
    also: str = ""
    """Another field that gets the same value."""

    @property
    def row(self) -> Row:
        """Return the declaration of the field."""
        return _row(self.field)

    @property
    def is_switch(self) -> bool:
        """Tell whether the option takes no argument."""
        return self.value is not None or self.row.kind in (bool, bool | None)

    @property
    def repeats(self) -> bool:
        """Tell whether the option may be given several times, each adding to the field."""
        return typing.get_origin(self.row.kind) is tuple and self.field not in _REPLACING

    @property
    def section(self) -> str:
        """Return the section that the field belongs to."""
        return self.field.partition(".")[0]


_REPLACING = ("worker.tensor_split", "sampling.samplers")
"""Lists that one argument gives as a whole."""


@cache
def _row(field: str) -> Row:
    section, _, name = field.partition(".")
    return next(row for row in describe(SECTIONS[section]) if row.name == name)


def _option(field: str, flags: str, off: str = "", *, env: str = "", **extra: Any) -> Option:
    name = env if env.startswith("LLAMA_") or not env else f"LLAMA_ARG_{env}"
    return Option(
        field=field, flags=tuple(flags.split()), off=tuple(off.split()), env=name, **extra
    )


# ---- texts ------------------------------------------------------------------------------------


def _layers(text: str) -> int:
    return -1 if text in ("auto", "all") else int(text)


def _flash(text: str) -> str:
    """Read on, off and auto with llama-server's synonyms of a boolean."""
    return text if text == "auto" else ("on" if _boolean(text) else "off")


def _shares(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in re.split("[,/]", text))


def _freq_scale(text: str) -> float:
    factor = float(text)
    if factor <= 0:
        raise ValueError("must be greater than 0")
    return 1 / factor


def _predict(text: str) -> int:
    return -1 if text == "-2" else int(text)  # -2, until the context is full: so is every -1


def _one(text: str) -> tuple[str, ...]:
    return (text,)


def _escaped(text: str) -> tuple[str, ...]:
    return (unescape(text),)


def _breakers(text: str) -> tuple[str, ...]:
    if text == "none":
        raise ValueError("set --dry-multiplier 0 instead of an empty list")
    return _escaped(text)


def _bias(text: str) -> tuple[tuple[int | str, float], ...]:
    match = re.fullmatch(r"(.+?)([+-](?:inf|\d+(?:\.\d*)?))", text, re.DOTALL)
    if match is None or match[2] == "+inf":
        raise ValueError("must be TOKEN_ID(+/-)BIAS as in 15043-1 or 15043-inf")
    token = int(match[1]) if match[1].isdigit() else match[1]
    return ((token, float(match[2])),)


def _file(text: str) -> str:
    try:
        return Path(text).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {text}: {error}") from error


def _boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered in ("1", "true", "on", "yes", "enabled"):
        return True
    if lowered in ("0", "false", "off", "no", "disabled"):
        return False
    raise ValueError("must be one of on, off, true, false, 1, 0")


_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}


def unescape(text: str) -> str:
    r"""Replace \n, \r, \t, \', \", \\ and \xHH, as llama-server does with stops and breakers."""

    def replaced(match: re.Match[str]) -> str:
        return chr(int(match[1], 16)) if match[1] else _ESCAPES[match[2]]

    return re.sub(r"\\(?:x([0-9a-fA-F]{2})|([nrt'\"\\]))", replaced, text)


# ---- the table --------------------------------------------------------------------------------

OPTIONS: tuple[Option, ...] = (
    _option("worker.model", "-m --model", env="MODEL"),
    _option("worker.alias", "-a --alias", env="ALIAS"),
    _option("worker.count", "--workers"),
    _option("worker.devices", "--devices"),
    _option("worker.device_per_worker", "--device-per-worker"),
    _option("gateway.host", "--host", env="HOST"),
    _option("gateway.port", "--port", env="PORT"),
    _option("gateway.timeout_s", "-to --timeout", env="TIMEOUT"),
    _option("gateway.api_key", "--api-key", env="LLAMA_API_KEY"),
    _option("gateway.api_key_file", "--api-key-file", env="API_KEY_FILE", parse=_one),
    _option("gateway.ssl_key_file", "--ssl-key-file", env="SSL_KEY_FILE"),
    _option("gateway.ssl_cert_file", "--ssl-cert-file", env="SSL_CERT_FILE"),
    _option("gateway.metrics", "--metrics", env="ENDPOINT_METRICS"),
    _option(
        "gateway.slots", "--slots", "--no-slots --slots-endpoint-disable", env="ENDPOINT_SLOTS"
    ),
    _option("gateway.ping_interval_s", "--sse-ping-interval", env="SSE_PING_INTERVAL"),
    _option("worker.n_ctx", "-c --ctx-size", env="CTX_SIZE"),
    _option("worker.n_slots", "-np --parallel", env="N_PARALLEL"),
    _option("worker.n_threads", "-t --threads", env="THREADS"),
    _option("worker.n_threads_batch", "-tb --threads-batch"),
    _option("worker.n_batch", "-b --batch-size", env="BATCH"),
    _option("worker.n_ubatch", "-ub --ubatch-size", env="UBATCH"),
    _option(
        "worker.n_gpu_layers",
        "-ngl --n-gpu-layers --gpu-layers",
        env="N_GPU_LAYERS",
        parse=_layers,
    ),
    _option("worker.split_mode", "-sm --split-mode", env="SPLIT_MODE"),
    _option("worker.tensor_split", "-ts --tensor-split", env="TENSOR_SPLIT", parse=_shares),
    _option("worker.main_gpu", "-mg --main-gpu", env="MAIN_GPU"),
    _option("worker.use_mmap", "--mmap", "--no-mmap", env="MMAP"),
    _option("worker.use_mlock", "--mlock", env="MLOCK"),
    _option("worker.flash_attn", "-fa --flash-attn", env="FLASH_ATTN", parse=_flash, bare="on"),
    _option("worker.cache_type_k", "-ctk --cache-type-k", env="CACHE_TYPE_K"),
    _option("worker.cache_type_v", "-ctv --cache-type-v", env="CACHE_TYPE_V"),
    _option("worker.cache_type_k", "--memory-f32", value="f32", also="worker.cache_type_v"),
    _option("worker.offload_kqv", "-kvo --kv-offload", "-nkvo --no-kv-offload", env="KV_OFFLOAD"),
    _option("worker.rope_scaling", "--rope-scaling", env="ROPE_SCALING_TYPE"),
    _option("worker.rope_freq_scale", "--rope-scale", env="ROPE_SCALE", parse=_freq_scale),
    _option("worker.rope_freq_base", "--rope-freq-base", env="ROPE_FREQ_BASE"),
    _option("worker.rope_freq_scale", "--rope-freq-scale", env="ROPE_FREQ_SCALE"),
    _option("worker.yarn_orig_ctx", "--yarn-orig-ctx", env="YARN_ORIG_CTX"),
    _option("worker.yarn_ext_factor", "--yarn-ext-factor", env="YARN_EXT_FACTOR"),
    _option("worker.yarn_attn_factor", "--yarn-attn-factor", env="YARN_ATTN_FACTOR"),
    _option("worker.yarn_beta_slow", "--yarn-beta-slow", env="YARN_BETA_SLOW"),
    _option("worker.yarn_beta_fast", "--yarn-beta-fast", env="YARN_BETA_FAST"),
    _option("worker.check_tensors", "--check-tensors"),
    _option("worker.warmup", "--warmup", "--no-warmup"),
    _option("worker.context_shift", "--context-shift", "--no-context-shift", env="CONTEXT_SHIFT"),
    _option("worker.slot_similarity", "-sps --slot-prompt-similarity"),
    _option("worker.step_target_ms", "--step-target-ms"),
    _option("worker.chat_template", "--chat-template", env="CHAT_TEMPLATE"),
    _option("worker.chat_template", "--chat-template-file", env="CHAT_TEMPLATE_FILE", parse=_file),
    _option("sampling.n_predict", "-n --predict --n-predict", env="N_PREDICT", parse=_predict),
    _option("sampling.n_keep", "--keep"),
    _option("sampling.cache_prompt", "--cache-prompt", "--no-cache-prompt", env="CACHE_PROMPT"),
    _option("sampling.seed", "-s --seed"),
    _option("sampling.samplers", "--samplers", parse=str),
    _option("sampling.samplers", "--sampling-seq --sampler-seq", parse=str),
    _option("sampling.ignore_eos", "--ignore-eos"),
    _option("sampling.penalize_nl", "--penalize-nl"),
    _option("sampling.temperature", "--temp --temperature", env="TEMPERATURE"),
    _option("sampling.top_k", "--top-k", env="TOP_K"),
    _option("sampling.top_p", "--top-p", env="TOP_P"),
    _option("sampling.min_p", "--min-p", env="MIN_P"),
    _option("sampling.top_n_sigma", "--top-n-sigma --top-nsigma"),
    _option("sampling.xtc_probability", "--xtc-probability"),
    _option("sampling.xtc_threshold", "--xtc-threshold"),
    _option("sampling.tfs_z", "--tfs"),
    _option("sampling.typical_p", "--typical --typical-p"),
    _option("sampling.repeat_last_n", "--repeat-last-n"),
    _option("sampling.repeat_penalty", "--repeat-penalty", env="REPEAT_PENALTY"),
    _option("sampling.presence_penalty", "--presence-penalty", env="PRESENCE_PENALTY"),
    _option("sampling.frequency_penalty", "--frequency-penalty", env="FREQUENCY_PENALTY"),
    _option("sampling.dry_multiplier", "--dry-multiplier"),
    _option("sampling.dry_base", "--dry-base"),
    _option("sampling.dry_allowed_length", "--dry-allowed-length"),
    _option("sampling.dry_penalty_last_n", "--dry-penalty-last-n"),
    _option("sampling.dry_sequence_breakers", "--dry-sequence-breaker", parse=_breakers),
    _option("sampling.dynatemp_range", "--dynatemp-range"),
    _option("sampling.dynatemp_exponent", "--dynatemp-exp"),
    _option("sampling.mirostat", "--mirostat"),
    _option("sampling.mirostat_eta", "--mirostat-lr"),
    _option("sampling.mirostat_tau", "--mirostat-ent"),
    _option("sampling.adaptive_target", "--adaptive-target"),
    _option("sampling.adaptive_decay", "--adaptive-decay"),
    _option("sampling.logit_bias", "-l --logit-bias", parse=_bias),
    _option("sampling.grammar", "--grammar"),
    _option("sampling.grammar", "--grammar-file", parse=_file),
    _option("sampling.stop", "-r --reverse-prompt", parse=_escaped),
)


# ---- reading ----------------------------------------------------------------------------------


def read_text(option: Option, text: str, key: str) -> Any:
    """Turn the text of an argument into the field's value; raises `InvalidRequest` naming `key`."""
    try:
        value = option.parse(text) if option.parse else _by_kind(option.row.kind, text)
    except ValueError as error:
        reason = str(error)
        if "could not convert" in reason or "invalid literal" in reason:
            reason = f"must be a number, but got '{text}'"
        raise InvalidRequest(f"{key}: {reason}", param=key) from error
    return check(option.row, value, key)


def _by_kind(kind: Any, text: str) -> Any:
    if kind in (bool, bool | None):
        return _boolean(text)
    if kind in (int, float):
        return kind(text)
    if typing.get_origin(kind) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text


def from_environ(environ: Mapping[str, str], sections: Iterable[str] = SECTIONS) -> dict[str, Any]:
    """Read the `LLAMA_ARG_*` variables into `{field: value}`; raises `ConfigError` naming one."""
    changes: dict[str, Any] = {}
    for option in OPTIONS:
        if not option.env or option.section not in sections:
            continue
        try:
            if text := environ.get(option.env, ""):
                changes[option.field] = read_text(option, text, option.env)
            elif option.off and environ.get(option.env.replace("_ARG_", "_ARG_NO_")) is not None:
                changes[option.field] = False
        except InvalidRequest as error:
            raise ConfigError(f"environment: {error.message}") from error
    return changes


_OF_ONE = ("worker.model", "worker.alias", "worker.count")


def apply(config: PoolConfig, changes: Mapping[str, Any]) -> PoolConfig:
    """Return the configuration with `{field: value}` set, worker fields in every worker."""
    for field in _OF_ONE:
        if field in changes and len(config.worker) > 1:
            flag = next(option.flags[-1] for option in OPTIONS if option.field == field)
            raise ConfigError(f"{flag} fits one [[worker]] table, but there are several: edit them")
    workers = config.worker or (WorkerConfig(),)
    part = {section: _of(section, changes) for section in SECTIONS}
    return replace(
        config,
        gateway=replace(config.gateway, **part["gateway"]),
        worker=tuple(
            replace(worker, sampling=replace(worker.sampling, **part["sampling"]), **part["worker"])
            for worker in workers
        ),
    )


def _of(section: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    prefix = f"{section}."
    return {k.removeprefix(prefix): v for k, v in changes.items() if k.startswith(prefix)}
