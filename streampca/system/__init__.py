"""The process and its machine: memory, cores, BLAS threads, reusable buffers, versions of libraries."""
