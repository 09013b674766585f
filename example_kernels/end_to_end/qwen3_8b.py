"""Qwen3-8B through transformers, plain and with the kernels, each alone and under torch.compile.

The model has its full size and random weights. Prefill at three lengths, and one decode step after 2048 tokens. The
column "bare" leaves the RMSNorms out altogether: what is between it and "plain" is all that a kernel could gain.
"""

import types

import torch
from kernels import LocalLayerRepository, Mode, kernelize, replace_kernel_forward_from_hub, use_kernel_mapping
from measure import Results, arguments, relative_difference, times
from transformers import Qwen3Config, Qwen3ForCausalLM, StaticCache
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm

QWEN3_8B = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
}
TINY = {**QWEN3_8B, "vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}


def main():
    options = arguments(__doc__)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lengths = (16, 32) if options.tiny else (128, 2048, 8192)
    cached, repeats = (32, 3) if options.tiny else (2048, 20)
    torch.manual_seed(0)
    config = Qwen3Config(**(TINY if options.tiny else QWEN3_8B), dtype=torch.bfloat16)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = Qwen3ForCausalLM(config).eval()
    for parameter in model.parameters():  # norms of ones would hide an error in the weight
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 1.0, 0.1)
    ids = torch.randint(0, config.vocab_size, (1, max(lengths)), device=device)
    results = Results(
        options.output,
        model="Qwen3-8B, random weights, bfloat16, batch 1" if not options.tiny else "tiny",
        parameters=sum(p.numel() for p in model.parameters()),
    )
    expected = {}

    def prefill(length):
        return model(input_ids=ids[:, :length], use_cache=False, logits_to_keep=1).logits

    def check(case, run):
        logits = run()
        if case not in expected:
            expected[case] = logits
            return {}
        return {"difference": relative_difference(logits, expected[case])}

    @torch.no_grad()
    def column(name, compiled=False):
        for length in lengths:
            case = f"prefill {length}"
            torch.compiler.reset()
            for (
                layer
            ) in model.model.layers:  # one layer at a time: 36 copies of one graph take a minute to compile
                layer._compiled_call_impl = None
                if compiled:
                    layer.compile(dynamic=False)

            def run(length=length):
                return prefill(length)

            results.add(
                case, name, lambda case=case, run=run: {**check(case, run), **times(run, repeats=repeats)}
            )
        for layer in model.model.layers:
            layer._compiled_call_impl = None
        results.add(f"decode after {cached}", name, lambda: decode(compiled))

    def decode(compiled):
        torch.compiler.reset()
        cache = StaticCache(config=config, max_cache_len=cached + 512)
        model(input_ids=ids[:, :cached], past_key_values=cache, use_cache=True, logits_to_keep=1)
        step = torch.compile(model, dynamic=False) if compiled else model
        position = [cached]

        def run():
            token = ids[:, :1]
            place = torch.tensor([[position[0]]], device=device)
            position[0] += 1
            return step(input_ids=token, past_key_values=cache, position_ids=place, use_cache=True).logits

        return {**check("decode", run), **times(run, repeats=repeats * 2, warmups=5)}

    column("plain")
    column("torch.compile", compiled=True)

    forward = Qwen3RMSNorm.forward
    Qwen3RMSNorm.forward = lambda self, x: x
    keep, expected = expected, {}
    column("bare")
    Qwen3RMSNorm.forward = forward
    expected = keep

    if device == "cuda":
        replace_kernel_forward_from_hub(Qwen3RMSNorm, "RMSNorm")
        replace_kernel_forward_from_hub(Qwen3DecoderLayer, "Qwen3DecoderLayer")
        mapping = {
            name: {"cuda": LocalLayerRepository(options.kernel, layer_name=name)}
            for name in ("RMSNorm", "Qwen3DecoderLayer")
        }
        with use_kernel_mapping(mapping, inherit_mapping=False):
            kernelize(model, mode=Mode.INFERENCE | Mode.TORCH_COMPILE, device="cuda", use_fallback=False)
        assert isinstance(model.model.layers[0].forward, types.MethodType)
        column("kernels")
        column("kernels + torch.compile", compiled=True)


if __name__ == "__main__":
    main()
