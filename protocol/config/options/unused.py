"""Options that set nothing: those of other programs, those without effect, and refused ones.

llama.cpp's programs once shared one set of options, so unit files of servers carry options of other
programs. These give one warning; a row of `REFUSED` ends the start with its reason.
"""

from protocol.config.options.option import Unused, unused
from protocol.config.options.speculation import SPECULATION_UNUSED

_CLI = "of llama-cli and its like"
_PERPLEXITY = "of llama-perplexity"
_RETRIEVAL = "of llama-retrieval"
_PASSKEY = "of llama-passkey"
_IMATRIX = "of llama-imatrix"
_BENCH = "of llama-batched-bench"
_CVECTOR = "of llama-cvector-generator"

FOREIGN: tuple[Unused, ...] = (
    unused("-co --color", _CLI, 1, bare="on", is_foreign=True, harmless=("0", "off", "auto")),
    *(
        unused(flags, why, n_values, is_foreign=True)
        for flags, why, n_values in (
            ("--display-prompt", _CLI, 0),
            ("--no-display-prompt", _CLI, 0),
            ("-sys --system-prompt", _CLI, 1),
            ("-sysf", _CLI, 1),
            ("-st --single-turn", _CLI, 0),
            ("-no-cnv --no-conversation", _CLI, 0),
            ("--show-timings", _CLI, 0),
            ("--no-show-timings", _CLI, 0),
            ("--audio --video", _CLI, 1),
            ("-p --prompt", _CLI, 1),
            ("-f --file", _CLI, 1),
            ("--in-file", _CLI, 1),
            ("-bf --binary-file", _CLI, 1),
            ("-ptc --print-token-count", _CLI, 1),
            ("--prompt-cache", _CLI, 1),
            ("--prompt-cache-all", _CLI, 0),
            ("--prompt-cache-ro", _CLI, 0),
            ("-cnv --conversation", _CLI, 0),
            ("-i --interactive", _CLI, 0),
            ("-if --interactive-first", _CLI, 0),
            ("-mli --multiline-input", _CLI, 0),
            ("--in-prefix-bos", _CLI, 0),
            ("--in-prefix", _CLI, 1),
            ("--in-suffix", _CLI, 1),
            ("--image", _CLI, 1),
            ("-ns --sequences", _CLI, 1),
            ("--chunks", _CLI, 1),
            ("--embd-output-format", _CLI, 1),
            ("--embd-separator", _CLI, 1),
            ("--all-logits", _PERPLEXITY, 0),
            ("--hellaswag", _PERPLEXITY, 0),
            ("--hellaswag-tasks", _PERPLEXITY, 1),
            ("--winogrande", _PERPLEXITY, 0),
            ("--winogrande-tasks", _PERPLEXITY, 1),
            ("--multiple-choice", _PERPLEXITY, 0),
            ("--multiple-choice-tasks", _PERPLEXITY, 1),
            ("--kl-divergence", _PERPLEXITY, 0),
            ("--kl-divergence-base --save-all-logits", _PERPLEXITY, 1),
            ("--ppl-stride", _PERPLEXITY, 1),
            ("--ppl-output-type", _PERPLEXITY, 1),
            ("--context-file", _RETRIEVAL, 1),
            ("--chunk-size", _RETRIEVAL, 1),
            ("--chunk-separator", _RETRIEVAL, 1),
            ("--junk", _PASSKEY, 1),
            ("--pos", _PASSKEY, 1),
            ("-o --output", _IMATRIX, 1),
            ("--output-frequency", _IMATRIX, 1),
            ("--save-frequency", _IMATRIX, 1),
            ("--process-output", _IMATRIX, 0),
            ("--no-ppl", _IMATRIX, 0),
            ("--chunk", _IMATRIX, 1),
            ("-pps", _BENCH, 0),
            ("-npp", _BENCH, 1),
            ("-ntg", _BENCH, 1),
            ("-npl", _BENCH, 1),
            ("--positive-file", _CVECTOR, 1),
            ("--negative-file", _CVECTOR, 1),
            ("--pca-batch", _CVECTOR, 1),
            ("--pca-iter", _CVECTOR, 1),
            ("--method", _CVECTOR, 1),
        )
    ),
)
"""Options of other programs of llama.cpp: one warning names all that were given."""

_IDLE = "is not needed: idle prompts move to --cache-ram, if there is any"
_CACHE = "is not needed: checkpoints are made where prompts part, and before their ends"

_VIDEO = "is not used: videos are not taken, for a program would have to run on what clients send"

_RUNTIME = "is not there: this server runs no tools, so /tools answers 403 (feature_disabled)"
_TOOLS = f"{_RUNTIME}; --cors-origins is localhost unless given"
_AGENT = _TOOLS.replace("/tools answers", "/tools and /cors-proxy answer")
_PROXY = "is not there: /cors-proxy answers 403 (feature_disabled)"

WITHOUT_EFFECT: tuple[Unused, ...] = (
    unused("-cb --cont-batching", "is always on", harmless=("*",)),
    unused("-nocb --no-cont-batching", "is not possible: batching is always continuous"),
    unused("--log-enable", "is the normal state", harmless=("*",)),
    unused("--log-append", "is how --log-file is written", harmless=("*",)),
    unused("--server", "is what this command is (llamafile's option)", harmless=("*",)),
    unused("--no-agent -no-ag", "is the normal state", env="NO_AGENT", harmless=("*",)),
    unused("--no-ui-mcp-proxy --no-webui-mcp-proxy", "is the normal state", harmless=("*",)),
    unused("--tools", _TOOLS, 1, wants_tools=True),
    unused("--tools-runtime", _RUNTIME, 1),
    unused("--mcp-servers-config", _TOOLS, 1, wants_tools=True),
    unused("--mcp-servers-json", _TOOLS, 1, wants_tools=True),
    unused("-ag --agent", _AGENT, wants_tools=True),
    unused("--ui-mcp-proxy --webui-mcp-proxy", _PROXY),
    unused("--video-fps", _VIDEO, 1),
    unused("--video-timestamp-interval", _VIDEO, 1),
    unused("--video-ffmpeg-dir", _VIDEO, 1),
    unused("-ndio --no-direct-io", "is the normal state", harmless=("*",)),
    unused("--log-new", "is not possible: --log-file is appended to"),
    unused("--log-test", "is not in a server"),
    unused("--lora-base", "was removed from llama.cpp", 1),
    unused("--simple-io", "is not in a server"),
    unused("-ld --logdir", "is not in a server: see --log-file", 1),
    unused("-dkvc --dump-kv-cache", "was removed from llama.cpp"),
    unused("-dt --defrag-thold", "was removed from llama.cpp", 1),
    unused("--cfg-negative-prompt", "never was in llama-server", 1),
    unused("--cfg-negative-prompt-file", "never was in llama-server", 1),
    unused("--cfg-scale", "never was in llama-server", 1, harmless=("1", "1.0")),
    unused("--llama-api", "is not needed: the models are here", 1),
    unused("--cache-reuse", "is not there; it changes no answer", 1, harmless=("0",)),
    unused("--cache-idle-slots", _IDLE),
    unused("--no-cache-idle-slots", _IDLE, harmless=("*",)),
    unused("-cms --checkpoint-min-step", _CACHE, 1, env="CHECKPOINT_MIN_SPACING_NT", low=0),
)
"""Options of a server that have no effect: each one that is given causes a warning."""

REFUSED: tuple[Unused, ...] = (
    unused("-dr --docker-repo", "is not there: use --model-url or --hf-repo", 1, is_refused=True),
)
"""Options without which another model would answer: the start ends with the reason."""

UNUSED = (*FOREIGN, *WITHOUT_EFFECT, *REFUSED, *SPECULATION_UNUSED)
