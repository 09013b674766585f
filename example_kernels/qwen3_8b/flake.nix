{
  description = "Flake for the qwen3-8b kernel";

  inputs.kbuild.url = "github:kbuild-dev/kbuild";

  outputs =
    { self, kbuild }:
    kbuild.lib.genKernelFlakeOutputs {
      inherit self;
      path = ./.;
    };
}
