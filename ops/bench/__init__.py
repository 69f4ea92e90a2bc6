"""The benchmarks of `weir bench`: workloads, measurements, reports, and the experiments of papers."""
