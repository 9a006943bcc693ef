#!/bin/bash
# One prefill and two decode engines on one node, the way test harnesses start them: arrays, functions, eval.
MODEL=${MODEL:-Qwen/Qwen2.5-7B-Instruct}
PREFILL_GPUS=${PREFILL_GPUS:-0}
DECODE_GPUS=${DECODE_GPUS:-1,2}
LAYOUT=${LAYOUT:-HND}
if [[ "$LAYOUT" == "NHD" ]]; then
  EXTRA=',"enable_permute_local_kv":true'
else
  EXTRA=''
fi
IFS=',' read -ra PREFILL_GPU <<< "$PREFILL_GPUS"
IFS=',' read -ra DECODE_GPU <<< "$DECODE_GPUS"
decode_ports=()

start_engine() {
  local role=$1 gpu=$2 port=$3 side=$4
  local config='{"kv_connector":"NixlConnector","kv_role":"'$role'"'${EXTRA}'}'
  local cmd="CUDA_VISIBLE_DEVICES=$gpu VLLM_NIXL_SIDE_CHANNEL_PORT=$side \
    vllm serve $MODEL --port $port --block-size 64 --kv-transfer-config '$config'"
  if [ -n "$TP" ]; then
    cmd="$cmd --tensor-parallel-size $TP"
  fi
  eval "$cmd > engine-$port.log 2>&1 &"
}

for i in "${!PREFILL_GPU[@]}"; do
  start_engine kv_producer "${PREFILL_GPU[$i]}" $((8100 + i)) $((5600 + i))
done
for i in "${!DECODE_GPU[@]}"; do
  start_engine kv_consumer "${DECODE_GPU[$i]}" $((8200 + i)) $((5700 + i))
  decode_ports+=($((8200 + i)))
done
python3 tests/v1/kv_connector/nixl_integration/toy_proxy_server.py --port 8192 \
  --prefiller-hosts localhost --prefiller-ports 8100 \
  --decoder-hosts localhost localhost --decoder-ports "${decode_ports[@]}" &
wait
