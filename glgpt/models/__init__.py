"""What each model family is: configuration, parameters, activations, forward pass. Knows no files and no GL."""
