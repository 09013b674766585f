{
  description = "Flake for the ltx-video kernel";

  inputs.kbuild.url = "github:kbuild-dev/kbuild";

  outputs =
    { self, kbuild }:
    kbuild.lib.genKernelFlakeOutputs {
      inherit self;
      path = ./.;
    };
}
