"""Messages and durable formats: control topics, commit metadata, spill logs. All carry a version; see `formats`."""
