{
  description = "@{description}";

  # `kbuild build` puts its own builder in the place of this input; `nix build` by hand takes the public one.
  inputs.kernel-builder.url = "github:huggingface/kernels";

  outputs =
    { self, kernel-builder }:
    kernel-builder.lib.genKernelFlakeOutputs {
      inherit self;
      path = ./.;
    };
}
