"""Tests of the image, of compose.yaml and of the Kubernetes manifests in containers/."""
