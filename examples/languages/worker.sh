#!/bin/sh
# A handler in shell: it greets. The id comes first in a request, so no parser of JSON is needed to find it.
echo '{"ready":1,"kinds":["greet"]}'
while IFS= read -r line; do
    case $line in '{"cancel":'*) continue ;; esac
    id=${line#*\"id\":\"}
    id=${id%%\"*}
    echo "greeting for $id" >&2
    printf '{"id":"%s","ok":"hello from %s"}\n' "$id" "$(uname)"
done
