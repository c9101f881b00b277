"""The manifests, built with kustomize and read with the parsers that a cluster will use."""
