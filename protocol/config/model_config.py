"""The keys of a `[[worker]]` table that name the model, and the files that belong to it."""

from dataclasses import dataclass

from protocol.wire.sampling import INT32_MAX
from protocol.wire.schema import param


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which model a worker loads, with its projector, adapters and position encoding."""

    name: str = param(
        "", "Name of the worker in logs, metrics and /slots; empty: HOST/ALIAS-NUMBER."
    )
    model: str = param(
        "", "GGUF file of the model; empty: the small model that is installed with llamapool."
    )
    alias: str = param(
        "",
        "Names of the model in requests, separated by commas; answers show the alphabetically "
        "first. Empty: the file name without .gguf.",
    )
    aliases: tuple[str, ...] = param((), "Further names of the model in requests.")
    tags: tuple[str, ...] = param(
        (),
        "Labels of the model, separated by commas; shown in /v1/models and used for nothing else.",
    )
    model_url: str = param(
        "", "URL to download the model from, if the file of `model` does not exist."
    )
    hf_repo: str = param(
        "", "Hugging Face repository to download the model from: USER/MODEL[:QUANT]."
    )
    hf_file: str = param("", "File in the Hugging Face repository; empty: chosen by QUANT.")
    mmproj_url: str = param(
        "", "URL to download the multimodal projector from, if the file of `mmproj` does not exist."
    )
    mmproj_auto: bool = param(
        True,
        "Download and use the multimodal projector of a Hugging Face repository, if it has one.",
    )
    hf_token: str = param("", "Access token for Hugging Face.")
    offline: bool = param(False, "Use only models that are on this host; download nothing.")
    check_tensors: bool = param(False, "Check the tensors for invalid values while loading.")
    override_kv: tuple[str, ...] = param(
        (), "Replace model metadata: KEY=TYPE:VALUE, with TYPE int, float, bool or str."
    )
    mmproj: str = param(
        "", "GGUF file of the multimodal projector, for images and sounds; empty: text only."
    )
    mmproj_offload: bool = param(True, "Run the multimodal projector on the GPU.")
    mmproj_device: str = param(
        "", "Device of the multimodal projector; `none`: the CPU. Empty: the first of `device`."
    )
    image_min_tokens: int = param(
        -1,
        "Fewest tokens of an image, for models that take images of any size; -1: the model's.",
        low=-1,
    )
    image_max_tokens: int = param(
        -1,
        "Most tokens of an image, for models that take images of any size; -1: the model's.",
        low=-1,
    )
    mtmd_batch_max_tokens: int = param(
        1024, "Most image tokens that the projector encodes at once.", low=1, high=INT32_MAX
    )
    lora: tuple[str, ...] = param((), "LoRA adapter to load: FILE or FILE:SCALE.")
    lora_init_without_apply: bool = param(
        False, "Load the LoRA adapters with scale 0, until POST /lora-adapters sets another."
    )
    control_vector: tuple[str, ...] = param((), "Control vector to add: FILE or FILE:SCALE.")
    control_vector_layers: tuple[int, ...] = param(
        (), "First and last layer that control vectors are added to; empty: all layers."
    )
    rope_scaling: str = param(
        "", "RoPE scaling method; empty: the model's.", choices=("", "none", "linear", "yarn")
    )
    rope_freq_base: float = param(0.0, "RoPE base frequency; 0: the model's.", low=0)
    rope_freq_scale: float = param(
        0.0, "RoPE frequency scale: the context grows by 1/N; 0: the model's."
    )
    yarn_orig_ctx: int = param(
        0,
        "YaRN: context that the model was trained on, in tokens; 0: the model's.",
        low=0,
        high=INT32_MAX,
    )
    yarn_ext_factor: float = param(
        -1.0, "YaRN: extrapolation mix factor, 0 is full interpolation; -1: the model's."
    )
    yarn_attn_factor: float = param(-1.0, "YaRN: attention scale; -1: the model's.")
    yarn_beta_slow: float = param(-1.0, "YaRN: high correction dimension, alpha; -1: the model's.")
    yarn_beta_fast: float = param(-1.0, "YaRN: low correction dimension, beta; -1: the model's.")
    grp_attn_n: int = param(
        1, "Self-extend: number of tokens that share a position; 1: off.", low=1, high=1024
    )
    grp_attn_w: int = param(512, "Self-extend: width of a group, in tokens.", low=1, high=INT32_MAX)
