#!/usr/bin/env python3
"""Put a built RMSNorm into the LTX-Video transformer of diffusers, and compare and time it with and without.

python diffusers_injection.py --path PROJECT [--layers 28 --heads 32]

Needs diffusers beside PyTorch and kernels. Without a GPU nothing is timed.
diffusers offers no extension point, so the forward of each matching module is replaced. Do so before
`enable_model_cpu_offload` and its like: their hooks wrap the forward that they find.
"""

import argparse
import statistics
import time
from pathlib import Path
from types import MethodType

import torch
from diffusers import LTXVideoTransformer3DModel
from kernels import get_local_kernel


def use_rms_norm(model, rms_norm):
    """Replace the forward of each RMSNorm of diffusers and PyTorch that the kernel computes; how many there were."""

    def forward(self, hidden_states):
        weight = None if self.weight is None else self.weight.to(hidden_states.dtype)
        return rms_norm(hidden_states, weight, self.eps)

    count = 0
    for module in model.modules():
        # By name: diffusers has a class of its own beside torch.nn.RMSNorm.
        # A bias, or an eps of None, is another formula.
        if (
            type(module).__name__ != "RMSNorm"
            or getattr(module, "bias", None) is not None
            or module.eps is None
        ):
            continue
        module.forward = MethodType(forward, module)
        count += 1
    return count


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
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--frames", type=int, default=2)
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    height = width = 8
    model = LTXVideoTransformer3DModel(
        in_channels=16,
        out_channels=16,
        num_attention_heads=options.heads,
        attention_head_dim=64,
        cross_attention_dim=64 * options.heads,
        num_layers=options.layers,
        caption_channels=32,
    )
    model = model.to(device, torch.bfloat16).eval()
    tokens = options.frames * height * width
    inputs = {
        "hidden_states": torch.randn(1, tokens, 16, device=device).bfloat16(),
        "encoder_hidden_states": torch.randn(1, 16, 32, device=device).bfloat16(),
        "encoder_attention_mask": torch.ones(1, 16, device=device),
        "timestep": torch.tensor([500.0], device=device).bfloat16(),
        "num_frames": options.frames,
        "height": height,
        "width": width,
    }

    def run(inputs=inputs):
        return model(**inputs).sample

    model.float()  # and back, which loses nothing: the same weights, computed in float32
    exact = run({name: x.float() if torch.is_tensor(x) else x for name, x in inputs.items()})
    model.bfloat16()
    plain = run()
    plain_time = seconds(run) if device == "cuda" else None
    kernel = get_local_kernel(options.path)
    calls = []

    def counted(*arguments):
        calls.append(arguments[0].shape)
        return kernel.rms_norm(*arguments)

    use_rms_norm(model, counted)
    run()
    count = use_rms_norm(model, kernel.rms_norm)
    assert len(calls) == count, "every module that was replaced is called once"
    kernels = run()
    before, after = error(plain, exact), error(kernels, exact)
    print(
        f"{count} layers replaced; output against float32: {before:.1e} off plain, {after:.1e} with the kernel"
    )
    if plain_time is not None:
        print(f"{plain_time * 1e3:.2f} ms plain, {seconds(run) * 1e3:.2f} ms with the kernel")
    assert count == 6 * options.layers, "two norms a block, and those of query and key in both attentions"
    assert after < 1.5 * before, "rounding adds up over the layers, and the kernel must not add to it"


if __name__ == "__main__":
    main()
