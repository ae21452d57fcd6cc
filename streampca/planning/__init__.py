"""Plans: how a source is divided into blocks and leaves, and the memory, flops and time that a fit takes."""
