"""Operations: the development broker's jars, images, benchmarks, the demo, Spark jobs."""
