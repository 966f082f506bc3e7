"""Who guesses ahead, as a configuration says it. Imported by the engine's thread and the settings."""
