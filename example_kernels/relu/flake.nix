{
  description = "ReLU, the smallest complete kernel project";

  inputs.kbuild.url = "path:../..";

  outputs =
    { self, kbuild }:
    kbuild.lib.genKernelFlakeOutputs {
      inherit self;
      path = ./.;
    };
}
