"""What verifiers share: finding boxed answers, and work that is bounded in time."""
