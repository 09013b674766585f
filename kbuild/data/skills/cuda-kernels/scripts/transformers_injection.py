#!/usr/bin/env python3
"""Put a built RMSNorm into a Qwen3 model of transformers, and compare and time the model with and without it.

python transformers_injection.py --path PROJECT [--layers 36 --hidden 4096]

Needs transformers beside PyTorch and kernels. The weights are random: what is compared is the arithmetic, not the text.
Without a GPU nothing is timed: the CPU code of a kernel is there to be right.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch
from kernels import (
    LocalLayerRepository,
    Mode,
    kernelize,
    replace_kernel_forward_from_hub,
    use_kernel_mapping,
)
from transformers import Qwen3Config, Qwen3ForCausalLM


def inject(model, repository, device):
    """Give every RMSNorm with a weight and a variance_epsilon the kernel's forward; how many there were."""
    for module in model.modules():
        cls = type(module)
        # transformers marks its layers as extensible only for the versions of kernels that it knows.
        # NB: variance_epsilon tells Llama's formula from Gemma's, which multiplies by 1 + weight and has eps.
        if cls.__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
            replace_kernel_forward_from_hub(cls, "RMSNorm")
    mapping = {"RMSNorm": {device: repository}}
    with use_kernel_mapping(mapping, inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE, device=device, use_fallback=False)
    return sum("forward" in vars(module) for module in model.modules())


def error(result, exact):
    return ((result.float() - exact).norm() / exact.norm()).item()


def seconds(run, repeats=10):
    found = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--path", type=Path, required=True, help="the project, built")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=1024,
        hidden_size=options.hidden,
        intermediate_size=3 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=options.hidden // 128 or 1,
        num_key_value_heads=options.hidden // 128 or 1,
        head_dim=128,
    )
    model = Qwen3ForCausalLM(config).to(device, torch.bfloat16).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:  # norms start as ones, which would hide a weight that is not applied
            torch.nn.init.normal_(parameter, 1.0, 0.1)
    tokens = torch.randint(0, config.vocab_size, (1, options.tokens), device=device)

    def run():
        return model(tokens, use_cache=False).logits

    model.float()  # and back, which loses nothing: the same weights, computed in float32
    exact = run()
    model.bfloat16()
    plain = run()
    plain_time = seconds(run) if device == "cuda" else None
    count = inject(model, LocalLayerRepository(options.path, layer_name="RMSNorm"), device)
    kernels = run()
    before, after = error(plain, exact), error(kernels, exact)
    print(
        f"{count} layers replaced; logits against float32: {before:.1e} off plain, {after:.1e} with the kernel"
    )
    if plain_time is not None:
        print(f"{plain_time * 1e3:.2f} ms plain, {seconds(run) * 1e3:.2f} ms with the kernel")
    assert count == 4 * options.layers + 1, "two norms a layer, two of its heads, one at the end"
    assert after < 1.5 * before, "rounding adds up over the layers, and the kernel must not add to it"


if __name__ == "__main__":
    main()
