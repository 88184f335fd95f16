"""Code generation: an LLVM IR builder, the compiler behind it, the object cache, and the parallel loop."""
