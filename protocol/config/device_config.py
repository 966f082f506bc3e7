"""The keys of a `[[worker]]` table that choose the devices of a model."""

from dataclasses import dataclass

from protocol.wire.sampling import INT32_MAX
from protocol.wire.schema import param


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """GPUs, CPU threads and memory of one worker."""

    devices: str = param(
        "", "GPUs that the worker may see, as CUDA_VISIBLE_DEVICES; empty: the environment's value."
    )
    device_per_worker: bool = param(
        False, "Give each of several workers one GPU: the n-th worker the n-th of `devices`."
    )
    n_threads: int = param(
        0,
        "CPU threads of a worker for generation; 0 or -1: its share of the cores.",
        low=-1,
        high=512,
    )
    n_threads_batch: int = param(
        0, "CPU threads of a worker for prompts; 0 or -1: as for generation.", low=-1, high=512
    )
    n_gpu_layers: int = param(
        -1, "Layers of the model on the GPU; -1, auto or all: every layer.", low=-1, high=10000
    )
    split_mode: str = param(
        "layer",
        "How a model is split over several GPUs: `none` uses one, `layer` gives each some "
        "layers, `row` and `tensor` split each tensor.",
        choices=("none", "layer", "row", "tensor"),
    )
    main_gpu: int = param(
        0,
        "Index of the GPU that holds small tensors, or the whole model with split mode none; "
        "below 0 and with that mode, the model is on the CPU.",
        low=-INT32_MAX,
        high=INT32_MAX,
    )
    device: tuple[str, ...] = param(
        (),
        "llama.cpp devices to use, separated by commas, as --list-devices names them; `none`: "
        "only the CPU. Empty: all.",
    )
    override_tensor: tuple[str, ...] = param(
        (), "Buffer type for tensors whose names match a regular expression: PATTERN=BUFFER."
    )
    cpu_moe: bool = param(False, "Keep the expert weights of all layers in the host's memory.")
    n_cpu_moe: int = param(
        0, "Keep the expert weights of the first N layers in the host's memory.", low=0, high=10000
    )
    n_cpu_ffn: int = param(
        0,
        "Keep the dense feed-forward weights of the first N layers in the host's memory.",
        low=0,
        high=10000,
    )
    fit: bool = param(
        True,
        "If device memory is short, use a smaller context, then fewer GPU layers, unless both "
        "are set.",
    )
    fit_target: tuple[int, ...] = param(
        (1024,),
        "Memory that `fit` leaves free on each device, in MiB, separated by commas; one number "
        "holds for all devices.",
    )
    fit_ctx: int = param(
        4096, "Smallest context that `fit` may choose, in tokens.", low=0, high=INT32_MAX
    )
    tensor_split: tuple[float, ...] = param(
        (), "Share of the model on each GPU, as numbers separated by commas; empty: by free memory."
    )
    use_mmap: bool | None = param(
        None,
        "Map the model file instead of reading it into memory. Unset: read by a CPU worker that"
        " alone has the model, mapped otherwise.",
    )
    use_mlock: bool = param(False, "Lock the model in RAM, so that it is never swapped out.")
    load_mode: str = param(
        "",
        "How the file is loaded; `dio` reads past the page cache. Empty: by --mmap and --mlock.",
        choices=("", "auto", "none", "mmap", "mlock", "mmap+mlock", "dio"),
    )
    lazy_mode: str = param(
        "auto",
        "Read the rows of per-layer embedding tables from the file when they are needed; auto: "
        "for tables over 4 GiB.",
        choices=("auto", "on", "off"),
    )
    no_host: bool = param(False, "Do not use pinned host buffers, so that weights can be repacked.")
    op_offload: bool = param(
        True, "Compute large batches on the GPU for weights that are in the host's memory."
    )
    perf: bool = param(
        False, "Let llama.cpp measure itself; its figures are logged when the model is unloaded."
    )
    flash_attn: str = param(
        "auto",
        "Flash attention: on, off, or auto, which is llama.cpp's choice.",
        choices=("auto", "on", "off"),
    )
    offload_kqv: bool = param(True, "Keep the KV cache in GPU memory.")
    repack: bool = param(
        True,
        "Reorder weights in memory for faster CPU kernels, where llama.cpp can (Q4_0 on most "
        "CPUs); each worker then has its own copy.",
    )
    numa: str = param(
        "",
        "NUMA strategy of llama.cpp; empty: chosen from the machine.",
        choices=("", "none", "distribute", "isolate", "numactl", "mirror"),
    )
    cpus: str = param(
        "",
        "CPUs that the worker may run on, as in 0-3,8; `all`: any. Empty: chosen from the machine.",
    )
    poll: int = param(
        -1,
        "How long threads spin while they wait for each other: 0 never, 100 longest; -1: chosen"
        " from the machine.",
        low=-1,
        high=100,
    )
    cpus_batch: str = param(
        "", "CPUs of the threads that read prompts, as in 0-3,8; empty: those of the worker."
    )
    poll_batch: int = param(
        -1, "The same as `poll` for threads that read prompts; -1: as `poll`.", low=-1, high=100
    )
    prio: int = param(
        0,
        "Scheduling priority of the threads: -1 low, 0 normal, 1 medium, 2 high, 3 realtime.",
        low=-1,
        high=3,
    )
    prio_batch: int = param(
        0,
        "Scheduling priority of the threads that read prompts: 0 normal to 3 realtime.",
        low=0,
        high=3,
    )
    cpu_strict: bool = param(False, "Bind each thread to one CPU.")
    cpu_strict_batch: bool | None = param(
        None, "Bind each thread that reads prompts to one CPU; unset: as --cpu-strict."
    )
    rpc: tuple[str, ...] = param((), "RPC servers of llama.cpp, as HOST:PORT separated by commas.")
