#!/usr/bin/env bash
# From a bare Debian 12 to a trained GPT: installs, builds, starts one coordinator and two workers,
# trains a GPT of about 14 M parameters on English text, and leaves a verified checkpoint, a sample
# of generated text and a Hugging Face folder.
#   deploy/quickstart.sh [--data FILE] [--steps N] [--summary FILE] [--home DIR] [--keep-up]
#     --data FILE     text to learn (default: the King James Bible of Debian's bible-kjv-text)
#     --steps N       optimizer steps (default: what the plan expects to take three minutes, but
#                     60 at least and 300 at most)
#     --summary FILE  write the final numbers there as JSON
#     --home DIR      where daemons, checkpoints and results live (default build/quickstart)
#     --keep-up       leave coordinator and workers running
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

usage() { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
data='' steps='' summary='' home=$root/build/quickstart keep_up=false
while [ $# -gt 0 ]; do
  case $1 in
    --data) data=$(realpath -- "${2:?}"); shift 2 ;;
    --steps) steps=${2:?}; shift 2 ;;
    --summary) summary=$(realpath -m -- "${2:?}"); shift 2 ;;
    --home) home=$(realpath -m -- "${2:?}"); shift 2 ;;
    --keep-up) keep_up=true; shift ;;
    *) usage ;;
  esac
done
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

say "1/6 Debian packages"
./deploy/install.sh

say "2/6 Build"
cmake --preset release >/dev/null
cmake --build --preset release --target weft_binaries
PATH=$root/build/release/bin:$PATH

say "3/6 Text"
mkdir -p "$home"
if [ -z "$data" ]; then
  data=$home/kjv.txt
  # One chapter and verse a line, "Ge1:1 In the beginning ...": keep the words only.
  [ -s "$data" ] || bible -f 'gen1:1-rev22:21' | sed -E 's/^[0-9A-Za-z]+:[0-9]+ //' >"$data.new"
  [ -s "$data" ] || mv "$data.new" "$data"
fi
[ -s "$data" ] || { echo "quickstart: $data is empty or missing" >&2; exit 1; }
echo "$data: $(wc -c <"$data") bytes"

export WEFT_HOME=$home
job=$home/job.yaml
# A job of this many steps.
write_job() {
  cat >"$job" <<YAML
name: quickstart
model: { family: gpt2, layers: 6, width: 384, heads: 6, context: 256 }
data:
  train: ["$data"]
  validation_fraction: 0.05
  tokenizer: { vocab_size: 8192 }
optimizer: { learning_rate: 1.0e-3, weight_decay: 0.1 }
schedule: { kind: cosine, warmup_steps: $(($1 / 10)), final_ratio: 0.1 }
train:
  steps: $1
  global_batch: 16
  precision: bf16
  eval_every_steps: $(($1 / 4))
checkpoint: { every_steps: $(($1 / 4)), keep_last: 2 }
YAML
}

say "4/6 Coordinator and two workers"
stop() { weft down --quiet || true; }
$keep_up || trap stop EXIT
weft up --workers 2 --data-root "$(dirname "$data")"

say "5/6 Plan and train"
if [ -z "$steps" ]; then
  write_job 300
  expected=$(weft plan "$job" --top 1 -o json | python3 -c '
import json, sys
step = json.load(sys.stdin)["candidates"][0]["plan"]["prediction"]["step_seconds"]
steps = min(max(int(180 / step), 60), 300)
print(steps, round(steps * step))')
  read -r steps seconds <<<"$expected"
  echo "$steps steps, $seconds s by the plan; --steps N for another number"
fi
write_job "$steps"
weft plan "$job" --top 5
echo
started=$(date +%s.%N)
id=$(weft job submit "$job" -o name)
id=${id#job/}
echo "job $id"
weft job wait "$id"
seconds=$(echo "$(date +%s.%N) $started" | awk '{printf "%.1f", $1 - $2}')

say "6/6 Result"
verified=false
weft ckpt list "$id"
weft ckpt verify "$id" && verified=true
weft export "$id" --format hf --output "$home/hf"
echo
weft generate "$id" --prompt "In the beginning" --tokens 80 --temperature 0.8
echo
python3 - "$id" "$verified" "$seconds" "$home/hf" "$summary" <<'PYTHON'
import json, subprocess, sys
job_id, verified, seconds, hf, path = sys.argv[1:6]
job = json.loads(subprocess.run(["weft", "job", "get", job_id, "-o", "json"], check=True,
                                capture_output=True, text=True).stdout)
result = json.loads(job["summary_json"])
summary = {
    "validation_loss_nats": result["validation_loss_nats"],
    "unigram_entropy_nats": result["unigram_entropy_nats"],
    "tokens_per_second": result["tokens_per_second"],
    "parameters": result["parameters"],
    "checkpoint_verified": verified == "true",
    "hf_export_dir": hf,
    "train_seconds": float(seconds),
}
print(f"validation loss   {summary['validation_loss_nats']:.4f} nats/token")
print(f"unigram entropy   {summary['unigram_entropy_nats']:.4f} nats/token")
print(f"parameters        {summary['parameters'] / 1e6:.1f} M")
print(f"tokens/s          {summary['tokens_per_second']:.0f}")
print(f"train seconds     {summary['train_seconds']:.1f}")
if path:
    with open(path, "w") as file:
        json.dump(summary, file, indent=2)
        file.write("\n")
learned = summary["validation_loss_nats"] < summary["unigram_entropy_nats"]
sys.exit(0 if summary["checkpoint_verified"] and learned else 1)
PYTHON
echo "Hugging Face folder: $home/hf"
