//! The Helm charts and the kustomization: by real helm and kubectl, against the manifests and on a real API server.

mod charts;
mod helm;
mod kustomize;
mod quick_start;
mod releases;
