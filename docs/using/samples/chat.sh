#!/usr/bin/env bash
# A dialog in a shell, over /completion: each line that you type is answered as it is generated.
# Needs curl and jq. Usage: bash chat.sh [URL]; with a key, set API_KEY.
set -euo pipefail

URL="${1:-${API_URL:-http://127.0.0.1:8080}}"
INSTRUCTION="A chat between a curious human and an assistant. The assistant gives short, polite answers."

ask() { # PATH: posts standard input
    curl --silent --show-error --fail-with-body --no-buffer --header "Authorization: Bearer ${API_KEY:-}" \
        --data-binary @- --url "$URL/$1"
}

# The instruction stays when the dialog grows longer than the context.
N_KEEP="$(jq -n --arg text "$INSTRUCTION" '{content: $text, add_special: true}' | ask tokenize | jq '.tokens | length')"
DIALOG="$INSTRUCTION"

while IFS= read -r -p "> " QUESTION; do
    DIALOG+=$'\n### Human: '"$QUESTION"$'\n### Assistant:'
    ANSWER=""
    while IFS= read -r EVENT; do
        [[ "$EVENT" == "data: {"* ]] || continue
        # A dot behind the text, because $() cuts newlines off.
        PIECE="$(jq -rj '.content + "."' <<<"${EVENT#data: }")"
        PIECE="${PIECE%.}"
        printf '%s' "$PIECE"
        ANSWER+="$PIECE"
    done < <(jq -n --arg prompt "$DIALOG" --argjson keep "$N_KEEP" '{prompt: $prompt, n_keep: $keep,
        n_predict: 128, temperature: 0.2, stop: ["\n### Human:"], cache_prompt: true, stream: true}' | ask completion)
    printf '\n'
    DIALOG+="$ANSWER"
done
