"""Files and folders beside the model, found and checked before anything starts."""

from dataclasses import replace

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from protocol.filenames import expanded, is_dir, is_file
from protocol.scaled_file import join_scale, split_scale
from protocol.system_prompt import load_system_prompt


def with_side_files(worker: WorkerConfig) -> WorkerConfig:
    """Return the worker with absolute paths; raises `ConfigError` that names the key."""
    _check_layers(worker)
    if -1 < worker.sleep_idle_s <= 0:
        raise ConfigError("--sleep-idle-seconds must be more than 0, or -1 for never")
    return replace(
        worker,
        slot_save_path=_folder(worker.slot_save_path),
        lora=_scaled(worker.lora, "lora"),
        control_vector=_scaled(worker.control_vector, "control_vector"),
        system_prompt_file=_system_prompt(worker.system_prompt_file),
        lookup_cache_static=_absolute(worker.lookup_cache_static),
        lookup_cache_dynamic=_absolute(worker.lookup_cache_dynamic),
        prompts_dir=_absolute(worker.prompts_dir),
    )


def _absolute(text: str) -> str:
    """Anchor a path here: a worker runs in a folder of its own."""
    return str(expanded(text).absolute()) if text else ""


def _folder(text: str) -> str:
    if not text:
        return ""
    path = expanded(text).absolute()
    if not is_dir(path):
        raise ConfigError(f"slot_save_path {path} is not a directory: create it, or name another")
    return str(path)


def _scaled(texts: tuple[str, ...], key: str) -> tuple[str, ...]:
    found = []
    for text in texts:
        file = split_scale(text)
        path = expanded(file.path).absolute()
        if not is_file(path):
            name, _, scale = text.rpartition(":")
            if name and is_file(expanded(name)):
                raise ConfigError(f"{key} {text}: the scale '{scale}' is not a finite number")
            raise ConfigError(f"{key} {path} does not exist, or is closed to this user")
        found.append(join_scale(file._replace(path=str(path))))
    return tuple(found)


def _system_prompt(text: str) -> str:
    if not text:
        return ""
    path = expanded(text).absolute()
    load_system_prompt(path)
    return str(path)


def _check_layers(worker: WorkerConfig) -> None:
    layers = worker.control_vector_layers
    if layers and (len(layers) != 2 or layers[0] > layers[1] > 0):
        raise ConfigError("control_vector_layers must be two numbers: the first and the last layer")
