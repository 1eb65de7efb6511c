"""Real coding agents, from their package registry, through Foreword to a scripted engine."""
