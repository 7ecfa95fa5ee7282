"""Plans: networks prepared once and run on any number of inputs."""
