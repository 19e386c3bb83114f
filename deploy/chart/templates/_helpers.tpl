{{- /* The image of a part, by its digest or its tag: include "brupop.image" (list $ "agent") */}}
{{- define "brupop.image" -}}
{{- $root := index . 0 }}
{{- $part := index . 1 }}
{{- $image := $root.Values.image }}
{{- with trimSuffix "/" $image.registry }}{{ . }}/{{ end }}brupop-{{ $part }}
{{- $digest := index $image.digests $part }}
{{- if $digest }}@{{ $digest }}{{ else }}:{{ $image.tag | default $root.Chart.AppVersion }}{{ end }}
{{- end }}
