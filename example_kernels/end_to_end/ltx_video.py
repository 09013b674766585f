"""LTX-Video through diffusers, plain and with the kernels, each alone and under torch.compile.

Transformer, T5-XXL text encoder and VAE have their full sizes and random weights; 49 frames of 512 by 704, 30 steps,
guidance (so a batch of 2). The prompts are random tokens. "bare" leaves out norms, modulation, gates, residuals and
rotations: what is between it and "plain" is all that kernels for them could gain.
"""

import torch
from diffusers import (
    AutoencoderKLLTXVideo,
    FlowMatchEulerDiscreteScheduler,
    LTXPipeline,
    LTXVideoTransformer3DModel,
)
from diffusers.models.transformers import transformer_ltx
from kernels import (
    LocalLayerRepository,
    Mode,
    get_local_kernel,
    kernelize,
    replace_kernel_forward_from_hub,
    use_kernel_mapping,
)
from measure import Results, arguments, relative_difference, times
from transformers import T5Config, T5EncoderModel

T5_XXL = {
    "vocab_size": 32128,
    "d_model": 4096,
    "d_kv": 64,
    "d_ff": 10240,
    "num_layers": 24,
    "num_heads": 64,
    "feed_forward_proj": "gated-gelu",
    "dense_act_fn": "gelu_new",
}
TOKENS = 128


def pipeline(device, tiny):
    transformer = {"num_layers": 2, "num_attention_heads": 4, "cross_attention_dim": 256} if tiny else {}
    text = {**T5_XXL, "num_layers": 2} if tiny else T5_XXL
    with torch.device(device):
        parts = {
            "transformer": LTXVideoTransformer3DModel(**transformer),
            "text_encoder": T5EncoderModel(T5Config(**text)),
            "vae": AutoencoderKLLTXVideo(),
        }
    parts = {name: part.to(device, torch.bfloat16).eval() for name, part in parts.items()}
    pipe = LTXPipeline(scheduler=FlowMatchEulerDiscreteScheduler(), tokenizer=None, **parts)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def bare_block(
    self, hidden_states, encoder_hidden_states, temb, image_rotary_emb=None, encoder_attention_mask=None
):
    hidden_states = self.attn1(hidden_states, image_rotary_emb=image_rotary_emb)
    hidden_states = self.attn2(hidden_states, encoder_hidden_states, attention_mask=encoder_attention_mask)
    return self.ff(hidden_states)


def main():
    options = arguments(__doc__)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    pipe = pipeline(device, options.tiny)
    torch.set_default_dtype(torch.float32)
    size = {"height": 64, "width": 64, "num_frames": 9, "num_inference_steps": 2}
    if not options.tiny:
        size = {"height": 512, "width": 704, "num_frames": 49, "num_inference_steps": 30}
    repeats = 2 if options.tiny else 5
    ids = torch.randint(0, 32128, (2, TOKENS), device=device)
    mask = torch.ones(2, TOKENS, dtype=torch.bool, device=device)
    results = Results(
        options.output,
        model="tiny"
        if options.tiny
        else "LTX-Video, random weights, bfloat16, 49 frames of 512×704, 30 steps, guidance",
        parameters=sum(
            p.numel() for part in (pipe.transformer, pipe.text_encoder, pipe.vae) for p in part.parameters()
        ),
    )
    expected = {}

    @torch.no_grad()
    def generate(output_type="pt"):
        text = pipe.text_encoder(ids)[0]
        return pipe(
            prompt_embeds=text[:1],
            prompt_attention_mask=mask[:1],
            negative_prompt_embeds=text[1:],
            negative_prompt_attention_mask=mask[1:],
            generator=torch.Generator(device).manual_seed(0),
            output_type=output_type,
            **size,
        ).frames

    def step_inputs():
        frames = (size["num_frames"] - 1) // 8 + 1
        height, width = size["height"] // 32, size["width"] // 32
        generator = torch.Generator(device).manual_seed(1)
        kwargs = {"generator": generator, "device": device, "dtype": torch.bfloat16}
        return {
            "hidden_states": torch.randn(2, frames * height * width, 128, **kwargs),
            "encoder_hidden_states": torch.randn(2, TOKENS, 4096, **kwargs),
            "timestep": torch.full((2,), 500.0, device=device),
            "encoder_attention_mask": mask,
            "num_frames": frames,
            "height": height,
            "width": width,
            "rope_interpolation_scale": (8 / 25, 32, 32),
            "return_dict": False,
        }

    inputs = step_inputs()

    @torch.no_grad()
    def step():
        return pipe.transformer(**inputs)[0]

    def compare(case, run):
        output = run()
        if case not in expected:
            expected[case] = output
            return {}
        return {"difference": relative_difference(output, expected[case])}

    def column(name):
        cases = [("transformer step", step, repeats * 4), ("generation", generate, repeats)]
        for case, run, count in cases:
            results.add(
                case,
                name,
                lambda case=case, run=run, count=count: {
                    **compare(case, run),
                    **times(run, repeats=count, warmups=2),
                },
            )

    def compile_blocks(on):
        torch.compiler.reset()
        for block in pipe.transformer.transformer_blocks:
            block._compiled_call_impl = None
        if on:
            pipe.transformer.compile_repeated_blocks(fullgraph=True, dynamic=False)

    column("plain")
    compile_blocks(True)
    column("torch.compile")
    compile_blocks(False)

    block, rotate, norm = (
        transformer_ltx.LTXVideoTransformerBlock,
        transformer_ltx.apply_rotary_emb,
        torch.nn.RMSNorm,
    )
    forwards = block.forward, norm.forward
    block.forward, norm.forward = bare_block, lambda self, x: x
    transformer_ltx.apply_rotary_emb = lambda x, freqs: x
    keep, expected = expected, {}
    column("bare")
    expected = keep
    block.forward, norm.forward = forwards
    transformer_ltx.apply_rotary_emb = rotate

    if device == "cuda":
        # The rotation is a function of the model's module, with no layer to put a kernel in.
        transformer_ltx.apply_rotary_emb = get_local_kernel(options.kernel).apply_rotary_emb
        replace_kernel_forward_from_hub(block, "LTXVideoTransformerBlock")
        replace_kernel_forward_from_hub(norm, "RMSNorm")
        mapping = {
            name: {"cuda": LocalLayerRepository(options.kernel, layer_name=name)}
            for name in ("LTXVideoTransformerBlock", "RMSNorm")
        }
        with use_kernel_mapping(mapping, inherit_mapping=False):
            kernelize(
                pipe.transformer, mode=Mode.INFERENCE | Mode.TORCH_COMPILE, device="cuda", use_fallback=False
            )
        column("kernels")
        compile_blocks(True)
        column("kernels + torch.compile")


if __name__ == "__main__":
    main()
