// The registration macros that a kernel's bindings use. The public names are those of the kernel-builder layout.
//
// The op namespace is unique to a build: it carries a hash of the build's sources. Where the bindings take it only
// through the macros below, it is bound when the library is linked (KBUILD_NAMESPACE_AT_LINK), so that editing a
// kernel does not recompile every PyTorch release's bindings. Otherwise TORCH_EXTENSION_NAME is that namespace.
//
// The module's PyInit function is generated at link time against CPython's limited API; no Python.h is needed.

#pragma once

#define KBUILD_CONCAT_(a, b) a##b
#define KBUILD_CONCAT(a, b) KBUILD_CONCAT_(a, b)

#if defined(KBUILD_NAMESPACE_AT_LINK)

extern "C" __attribute__((visibility("hidden"))) const char kbuild_op_namespace[];

#define KBUILD_TORCH_LIBRARY(kind, key, uid, MODULE)                                                              \
  static void KBUILD_CONCAT(kbuild_library_init_, uid)(torch::Library&);                                          \
  static const torch::detail::TorchLibraryInit KBUILD_CONCAT(kbuild_library_, uid)(                               \
      kind, &KBUILD_CONCAT(kbuild_library_init_, uid), kbuild_op_namespace, key, __FILE__, __LINE__);             \
  void KBUILD_CONCAT(kbuild_library_init_, uid)(torch::Library & MODULE)

#define TORCH_LIBRARY_EXPAND(NAME, MODULE) \
  KBUILD_TORCH_LIBRARY(torch::Library::DEF, std::nullopt, __COUNTER__, MODULE)
#define TORCH_LIBRARY_IMPL_EXPAND(NAME, DEVICE, MODULE) \
  KBUILD_TORCH_LIBRARY(torch::Library::IMPL, std::make_optional(c10::DispatchKey::DEVICE), __COUNTER__, MODULE)

#define KBUILD_STABLE_LIBRARY(kind, key, uid, MODULE)                                                             \
  static void KBUILD_CONCAT(kbuild_library_init_, uid)(torch::stable::detail::StableLibrary&);                    \
  static const torch::stable::detail::StableTorchLibraryInit KBUILD_CONCAT(kbuild_library_, uid)(                 \
      torch::stable::detail::StableLibrary::Kind::kind, &KBUILD_CONCAT(kbuild_library_init_, uid),                \
      kbuild_op_namespace, key, __FILE__, __LINE__);                                                              \
  void KBUILD_CONCAT(kbuild_library_init_, uid)(torch::stable::detail::StableLibrary & MODULE)

#define STABLE_TORCH_LIBRARY_EXPAND(NAME, MODULE) KBUILD_STABLE_LIBRARY(DEF, nullptr, __COUNTER__, MODULE)
#define STABLE_TORCH_LIBRARY_IMPL_EXPAND(NAME, DEVICE, MODULE) \
  KBUILD_STABLE_LIBRARY(IMPL, #DEVICE, __COUNTER__, MODULE)

#else

#define TORCH_LIBRARY_EXPAND(NAME, MODULE) TORCH_LIBRARY(NAME, MODULE)
#define TORCH_LIBRARY_IMPL_EXPAND(NAME, DEVICE, MODULE) TORCH_LIBRARY_IMPL(NAME, DEVICE, MODULE)
#define STABLE_TORCH_LIBRARY_EXPAND(NAME, MODULE) STABLE_TORCH_LIBRARY(NAME, MODULE)
#define STABLE_TORCH_LIBRARY_IMPL_EXPAND(NAME, DEVICE, MODULE) STABLE_TORCH_LIBRARY_IMPL(NAME, DEVICE, MODULE)

#endif

#define REGISTER_EXTENSION(NAME) static_assert(true, "the module's PyInit function is generated at link time");
