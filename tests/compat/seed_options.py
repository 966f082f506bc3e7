"""The options of the documents that llamapool answers to: name, further names, sample arguments.

121 of llama-server as of 2024 and before, 9 of api_like_OAI.py, 52 of other programs whose options
llama-server once took without acting on them.
"""

SERVER = """
--host 127.0.0.1
--port 8080
-to 600 --timeout
--path @DIR
--api-key K
--api-key-file @FILE
--ssl-key-file @FILE
--ssl-cert-file @FILE
--threads-http 2
--metrics
--no-slots | --slots-endpoint-disable
--slot-save-path @DIR
-spf @JSON --system-prompt-file
--chat-template chatml
-sps 0.5 --slot-prompt-similarity
--embedding | --embeddings
--log-format text
--log-disable
-v | --verbose
--verbosity 0
--verbose-prompt
--log-enable
--log-file @NEW
--log-new
--log-append
-ld @DIR --logdir
--log-test
--simple-io
-h | --help | --usage
--version
-m @FILE --model
-a S --alias
-mu http://127.0.0.1/x.gguf --model-url
-hfr u/r --hf-repo
-hff f.gguf --hf-file
-hft T --hf-token
-ngl 0 --n-gpu-layers
-mg 0 --main-gpu
-ts 3,1 --tensor-split
--memory-f32
--mlock
--no-mmap
--numa | --numa distribute
--lora @FILE
--lora-scaled @FILE 0.5
--lora-base @FILE
--mmproj @FILE
--rpc 127.0.0.1:1
--check-tensors
--override-kv a=int:1
--control-vector @FILE
--control-vector-scaled @FILE 0.5
--control-vector-layer-range 1 2
-md @FILE --model-draft
--draft 5
-ps 0.1 --p-split
-td 1 --threads-draft
-tbd 1 --threads-batch-draft
-lcs @FILE --lookup-cache-static
-lcd @FILE --lookup-cache-dynamic
-nkvo | --no-kv-offload
-ctk f16 --cache-type-k
-ctv f16 --cache-type-v
-fa | --flash-attn
-dkvc | --dump-kv-cache
-t 1 --threads
-tb 1 --threads-batch
-c 512 --ctx-size
-b 512 --batch-size
-ub 512 --ubatch-size
-np 1 --parallel
-cb | --cont-batching
-dt -1 --defrag-thold
-gan 1 --grp-attn-n
-gaw 512 --grp-attn-w
--rope-scaling linear
--rope-scale 1
--rope-freq-base 10000
--rope-freq-scale 1
--yarn-orig-ctx 0
--yarn-ext-factor -1.0
--yarn-attn-factor 1.0
--yarn-beta-slow 1.0
--yarn-beta-fast 32.0
--pooling mean
--attention causal
--embd-normalize 2
-n -1 --predict --n-predict
--keep 0
-s -1 --seed
--samplers top_k;temperature
--sampling-seq kt
--ignore-eos
--penalize-nl
--temp 0.8 --temperature
--top-k 40
--top-p 0.9
--min-p 0.1
--tfs 1.0
--typical 1.0
--repeat-last-n 64
--repeat-penalty 1.1
--presence-penalty 0.0
--frequency-penalty 0.0
--dynatemp-range 0.0
--dynatemp-exp 1.0
--mirostat 0
--mirostat-lr 0.1
--mirostat-ent 5.0
-l 15043+1 --logit-bias
--cfg-negative-prompt P
--cfg-negative-prompt-file F
--cfg-scale 1.0
--grammar root
--grammar-file @FILE
-j {} --json-schema
-r P --reverse-prompt
-sp | --special
--spm-infill
-e | --escape
--no-escape
"""

API_LIKE_OAI = """
--chat-prompt P
--user-name U
--ai-name A
--system-name S
--stop </s>
--llama-api http://127.0.0.1:8080
--api-key K
--host 127.0.0.1
--port 8081
"""

FOREIGN = """
--no-display-prompt
-co | --color
-p P --prompt
-f F --file
--in-file F
-bf F --binary-file
-ptc -1 --print-token-count
--prompt-cache F
--prompt-cache-all
--prompt-cache-ro
-cnv | --conversation
-i | --interactive
-if | --interactive-first
-mli | --multiline-input
--in-prefix-bos
--in-prefix P
--in-suffix P
--image F
-ns 1 --sequences
--chunks -1
--embd-output-format array
--embd-separator S
--all-logits
--hellaswag
--hellaswag-tasks 400
--winogrande
--winogrande-tasks 0
--multiple-choice
--multiple-choice-tasks 0
--kl-divergence
--ppl-stride 0
--ppl-output-type 0
--context-file F
--chunk-size 64
--chunk-separator S
--junk 250
--pos -1
-o F --output
--output-frequency 10
--save-frequency 0
--process-output
--no-ppl
--chunk 0
-pps
-npp 1,2
-ntg 1,2
-npl 1,2
--positive-file F
--negative-file F
--pca-batch 100
--pca-iter 1000
--method pca
"""


def uses(text: str) -> list[list[str]]:
    """Return every way in which a table's options may be written, as arguments."""
    found: list[list[str]] = []
    for line in text.strip().splitlines():
        for part in line.split(" | "):
            words = part.split()
            values = [word for word in words[1:] if not _is_flag(word)]
            flags = [words[0], *(word for word in words[1:] if _is_flag(word))]
            found += [[flag, *values] for flag in flags]
    return found


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not word.lstrip("-")[:1].isdigit()


def count(text: str) -> int:
    """Count the options of a table."""
    return len(text.strip().splitlines())
