{{- /* The image of a part, by its tag and, where it is set, its digest: include "brupop.image" (list $ "agent") */}}
{{- define "brupop.image" -}}
{{- $root := index . 0 }}
{{- $part := index . 1 }}
{{- $image := $root.Values.image }}
{{- with trimSuffix "/" $image.registry }}{{ . }}/{{ end }}brupop-{{ $part }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- with index $image.digests $part }}@{{ . }}{{ end }}
{{- end }}
