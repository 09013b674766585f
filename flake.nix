{
  description = "kbuild: build, verify and publish PyTorch kernels";

  outputs = { self }: import ./kbuild/nix { package = ./kbuild; };
}
