"""Makes the files of this case: a small queue model of one colocated server and of one prefill plus one decode server.

The figures are a model's, not a GPU's; what is real is the format (vLLM 0.33, --save-detailed) and the formulas of
vllm/benchmarks/serve.py. Run from this folder: python3 simulate.py
"""

import json
import pathlib
import random
import statistics

RATES = (0.5, 1.0, 2.0, 3.0)
PREFILL, STEP, TRANSFER, PROMPT, OUTPUT, COUNT = 0.25, 0.010, 0.06, 8192, 24, 60


def percentile(values, p):
    values = sorted(values)
    place = (len(values) - 1) * p / 100
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def arrivals(rate, draw):
    times, now = [], 0.0
    for _ in range(COUNT):
        now += draw.expovariate(rate)
        times.append(now)
    return [t * (COUNT / rate) / times[-1] for t in times]


def serve(rate, seed, split):
    """Prefills run one after the other; when colocated, each stops the decoding of all others for its time."""
    draw = random.Random(seed)
    starts, free, prefills, requests = arrivals(rate, draw), 0.0, [], []
    for start in starts:
        begin = max(start, free)
        free = begin + PREFILL * draw.uniform(0.97, 1.03)
        prefills.append((begin, free))
        requests.append([start, free + (TRANSFER * draw.uniform(0.9, 1.2) if split else 0.0)])
    found = []
    for start, first in requests:
        now, gaps = first, []
        for _ in range(OUTPUT - 1):
            gap = STEP * draw.uniform(0.95, 1.1)
            if not split:
                gap += sum(
                    end - max(begin, now) for begin, end in prefills if begin <= now + gap and end > now
                )
            gaps.append(gap)
            now += gap
        found.append((start, first - start, gaps))
    return found


def result(rate, requests, date):
    ttfts = [ttft for _, ttft, _ in requests]
    tpots = [sum(gaps) / len(gaps) for _, _, gaps in requests]
    itls = [gap for _, _, gaps in requests for gap in gaps]
    duration = max(start + ttft + sum(gaps) for start, ttft, gaps in requests)
    told = {
        "date": date, "endpoint_type": "openai", "backend": "openai", "label": None, "model_id": "simulated/8B",
        "tokenizer_id": "simulated/8B", "num_prompts": COUNT, "gpus": "2", "request_rate": rate, "burstiness": 1.0,
        "max_concurrency": None, "duration": duration, "completed": COUNT, "failed": 0,
        "total_input_tokens": COUNT * PROMPT, "total_output_tokens": COUNT * OUTPUT,
        "request_throughput": COUNT / duration, "request_goodput": None, "output_throughput": COUNT * OUTPUT / duration,
        "total_token_throughput": COUNT * (PROMPT + OUTPUT) / duration,
    }  # fmt: skip
    for name, values in (("ttft", ttfts), ("tpot", tpots), ("itl", itls)):
        told[f"mean_{name}_ms"] = statistics.fmean(values) * 1e3
        told[f"median_{name}_ms"] = percentile(values, 50) * 1e3
        told[f"std_{name}_ms"] = statistics.pstdev(values) * 1e3
        told[f"p99_{name}_ms"] = percentile(values, 99) * 1e3
    told |= {
        "latencies": [round(ttft + sum(gaps), 6) for _, ttft, gaps in requests],
        "input_lens": [PROMPT] * COUNT, "output_lens": [OUTPUT] * COUNT,
        "ttfts": [round(t, 6) for t in ttfts], "itls": [[round(g, 6) for g in gaps] for _, _, gaps in requests],
        "generated_texts": [""] * COUNT, "errors": [""] * COUNT,
    }  # fmt: skip
    return told


for side in ("colocated", "pd"):
    folder = pathlib.Path(side)
    folder.mkdir(exist_ok=True)
    for number, rate in enumerate(RATES):
        runs = serve(rate, 10 * number + (side == "pd"), side == "pd")
        text = json.dumps(result(rate, runs, f"20261110-{number + (5 if side == 'pd' else 0):02d}0000"))
        (folder / f"rate-{rate:g}.json").write_text(text)
