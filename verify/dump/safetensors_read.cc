// SPDX-License-Identifier: MIT
//
// See safetensors.h. Map, read the header, then prove that the tensors' bytes are exactly the rest of the file.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "verify/dump/placement.h"
#include "verify/dump/safetensors.h"

namespace lockstep::dump {
namespace {

using nlohmann::json;

constexpr uint64_t kLengthBytes = 8;

std::string cut_off(const std::string& path, uint64_t size, uint64_t least, const std::string& where,
                    const std::string& again) {
  return path + ": byte " + std::to_string(size) + ": the safetensors file is truncated, it ends " + where +
         "; expected at least " + std::to_string(least) + " bytes: copy it again, or, if its writer was killed, " +
         again;
}

// JSON allows a name twice and parsers keep the last; here that would lose a tensor.
Result<json> parse_header(const std::string& path, const char* text, uint64_t size) {
  std::vector<std::set<std::string>> keys;
  std::string fault;
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::array_start && depth > 3 && fault.empty()) fault = "has lists within lists";
    if (event == json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second && fault.empty())
      fault = "has the name \"" + parsed.get<std::string>() + "\" twice";
    return true;
  };
  json header;
  try {
    header = json::parse(text, text + size, watch);
  } catch (const json::parse_error& error) {
    return Error{path + ": byte " + std::to_string(kLengthBytes + error.byte) +
                 ": the header is not JSON there; the file is damaged or no safetensors file"};
  } catch (const json::out_of_range&) {
    return Error{path +
                 ": the header has a number that is larger than any; the file is damaged or no safetensors file"};
  }
  if (!fault.empty()) return Error{path + ": the header " + fault + "; write the file again"};
  if (!header.is_object()) return Error{path + ": byte 8: expected the header, a JSON object"};
  return header;
}

bool read_extents(const json& value, std::vector<int64_t>& out) {
  if (!value.is_array()) return false;
  for (const json& each : value) {
    if (!each.is_number_unsigned() || each.get<uint64_t>() > INT64_MAX) return false;
    out.push_back(each.get<int64_t>());
  }
  return true;
}

// A tensor's entry; `offset` is left relative to the end of the header.
Result<StoredTensor> read_entry(const std::string& where, const std::string& name, const json& entry) {
  StoredTensor tensor = {};
  tensor.name = name;
  std::vector<int64_t> offsets;
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() || !entry.contains("shape") ||
      !read_extents(entry["shape"], tensor.shape) || !entry.contains("data_offsets") ||
      !read_extents(entry["data_offsets"], offsets) || offsets.size() != 2)
    return Error{where + "expected {\"dtype\": ..., \"shape\": [...], \"data_offsets\": [begin, end]}"};
  const std::optional<Dtype> dtype = dtype_named(entry["dtype"].get<std::string>());
  if (!dtype) {
    std::string known;
    for (const Dtype each : kDtypes) known += std::string(known.empty() ? "" : " ") + name_of(each);
    return Error{where + "its dtype " + entry["dtype"].get<std::string>() + " is none of " + known};
  }
  tensor.dtype = *dtype;
  const int64_t elements = elements_of(tensor.shape);
  int64_t bytes = 0;
  if (elements < 0 || __builtin_mul_overflow(elements, static_cast<int64_t>(size_of(*dtype)), &bytes))
    return Error{where + "its shape " + shape_text(tensor.shape) + " has too many elements"};
  if (offsets[0] > offsets[1] || offsets[1] - offsets[0] != bytes)
    return Error{where + "its bytes " + std::to_string(offsets[0]) + " to " + std::to_string(offsets[1]) +
                 " are not the " + std::to_string(bytes) + " that " + name_of(*dtype) + " " + shape_text(tensor.shape) +
                 " takes"};
  tensor.offset = static_cast<uint64_t>(offsets[0]);
  tensor.bytes = static_cast<uint64_t>(bytes);
  return tensor;
}

// The tensors in the order of their bytes; each must begin where the one before ended.
std::string check_bytes(const std::string& path, const std::vector<StoredTensor>& tensors, uint64_t data, uint64_t size,
                        const std::string& again) {
  uint64_t at = 0;
  const StoredTensor* before = nullptr;
  for (const StoredTensor& tensor : tensors) {
    const std::string place =
        path + ": byte " + std::to_string(data + tensor.offset) + ": tensor \"" + tensor.name + "\" ";
    if (tensor.offset < at) return place + "overlaps \"" + before->name + "\"; the file is damaged";
    if (tensor.offset > at)
      return place + "begins " + std::to_string(tensor.offset - at) +
             " bytes after the one before; nothing claims these";
    at += tensor.bytes;
    before = &tensor;
  }
  if (data + at > size) {
    const auto torn = std::find_if(tensors.begin(), tensors.end(), [&](const StoredTensor& tensor) {
      return data + tensor.offset + tensor.bytes > size;
    });
    return cut_off(path, size, data + at, "in tensor \"" + torn->name + "\"", again);
  }
  if (data + at < size)
    return path + ": byte " + std::to_string(data + at) + ": " + std::to_string(size - data - at) +
           " bytes follow that no tensor claims";
  return "";
}

std::string system_error() { return std::system_category().message(errno); }

}  // namespace

Result<Safetensors> Safetensors::view(const std::byte* bytes, uint64_t size, const std::string& name,
                                      const std::string& again) {
  if (size < kLengthBytes) return Error{cut_off(name, size, kLengthBytes, "before its header", again)};
  uint64_t length = 0;
  for (size_t i = kLengthBytes; i-- > 0;) length = length << 8 | static_cast<uint64_t>(bytes[i]);
  if (length > kMaxHeaderBytes)
    return Error{name + ": byte 0: a header of " + std::to_string(length) + " bytes, where at most " +
                 std::to_string(kMaxHeaderBytes) + " are allowed; is it a safetensors file?"};
  if (length > size - kLengthBytes) return Error{cut_off(name, size, kLengthBytes + length, "in its header", again)};
  Result<json> header = parse_header(name, reinterpret_cast<const char*>(bytes) + kLengthBytes, length);
  if (!header) return Error{header.error()};

  Safetensors file;
  file.path_ = name;
  for (const auto& [key, value] : header->items()) {
    if (key == "__metadata__") {
      if (!value.is_object()) return Error{name + ": __metadata__ is not an object of texts"};
      for (const auto& [word, text] : value.items()) {
        if (!text.is_string())
          return Error{name + ": __metadata__: \"" + word + "\" is not a text; safetensors allows nothing else"};
        file.metadata_[word] = text.get<std::string>();
      }
      continue;
    }
    Result<StoredTensor> tensor = read_entry(name + ": tensor \"" + key + "\": ", key, value);
    if (!tensor) return Error{tensor.error()};
    file.tensors_.push_back(std::move(*tensor));
  }
  // Tensors without bytes stand before what begins where they do.
  std::sort(file.tensors_.begin(), file.tensors_.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  const uint64_t data = kLengthBytes + length;
  if (const std::string fault = check_bytes(name, file.tensors_, data, size, again); !fault.empty())
    return Error{fault};
  for (size_t i = 0; i < file.tensors_.size(); i++) {
    StoredTensor& tensor = file.tensors_[i];
    tensor.offset += data;
    tensor.data = bytes + tensor.offset;
    file.by_name_[tensor.name] = i;
  }
  return file;
}

Result<Safetensors> Safetensors::open(const std::filesystem::path& path, const std::string& again) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe nobody writes to must not hold us
  if (fd < 0) return Error{path.string() + ": cannot be opened: " + system_error()};
  struct stat status = {};
  void* map = nullptr;
  const bool regular = fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  const uint64_t size = regular ? static_cast<uint64_t>(status.st_size) : 0;
  if (size) map = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const std::string failed = map == MAP_FAILED ? system_error() : "";
  close(fd);
  if (!regular) return Error{path.string() + ": expected a safetensors file, found something that is not a file"};
  if (map == MAP_FAILED) return Error{path.string() + ": cannot be mapped: " + failed};
  Result<Safetensors> file = view(static_cast<const std::byte*>(map), size, path.string(), again);
  if (!file) {
    if (map) munmap(map, size);
    return Error{file.error()};
  }
  file->map_ = map;
  file->map_bytes_ = size;
  return file;
}

Safetensors::Safetensors(Safetensors&& other) noexcept { *this = std::move(other); }

Safetensors& Safetensors::operator=(Safetensors&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(map_, other.map_);
  std::swap(map_bytes_, other.map_bytes_);
  std::swap(tensors_, other.tensors_);
  std::swap(by_name_, other.by_name_);
  std::swap(metadata_, other.metadata_);
  return *this;
}

Safetensors::~Safetensors() {
  if (map_) munmap(map_, map_bytes_);
}

const StoredTensor* Safetensors::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace lockstep::dump
