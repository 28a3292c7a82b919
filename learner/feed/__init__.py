"""The learner's side of its link with replay: batches come to the device, priorities go back."""
