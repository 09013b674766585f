# A CUDA toolkit merged from the trees of NVIDIA's wheels: { root; version; } for a compute such as "cu130".
{
  matrix,
  tree,
  step,
  ...
}:
compute:
let
  toolkit = matrix.toolkits.${compute};
in
{
  version = toolkit.cuda;
  root = step {
    name = "cuda-toolkit-${toolkit.cuda}";
    step = ./steps/merge_toolkit.py;
    inputs.trees = map (key: "${tree key}") toolkit.trees;
  };
}
