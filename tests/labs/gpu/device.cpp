// A CUDA device for a torch that was built for the CPU alone. Tensors are `cuda:0`, and their numbers lie in the host's memory.
//
// Each kernel is the CPU's. As on a real device, an operation on tensors of both devices fails, fresh memory is not zero, and a
// copy to the host that was not waited for has not arrived: until then its destination holds nonsense. What makes the host wait
// is reported. It has no clock of its own, no second stream, no graphs and no cuDNN.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace {

constexpr unsigned char kFresh = 0x7b;  // every byte of memory that nothing has been written to
const at::Device kCard(at::DeviceType::CUDA, 0);

std::mutex lock;                                            // over the three below
std::set<std::pair<const char*, const char*>> page_locked;  // [begin, end)
std::vector<std::pair<at::Tensor, at::Tensor>> on_their_way;  // copies to the host: destination, value
void (*listener)(const char* operation) = nullptr;

thread_local int inside = 0;  // above 0 within a kernel, whose copies are not the program's

struct Inside {
  Inside() { ++inside; }
  ~Inside() { --inside; }
};

// ---- waiting ----

// All copies to the host are over.
void arrive() {
  std::vector<std::pair<at::Tensor, at::Tensor>> arrived;
  {
    std::lock_guard<std::mutex> guard(lock);
    arrived.swap(on_their_way);
  }
  const Inside kernel;
  at::AutoDispatchBelowADInplaceOrView below;
  for (auto& [destination, value] : arrived) destination.copy_(value);
}

void host_waits(const std::string& for_what) {
  if (inside > 0) return;
  if (listener != nullptr) listener(for_what.c_str());
  arrive();
}

// ---- memory ----

void* allocate(size_t bytes, size_t alignment) {
  void* memory = nullptr;
  TORCH_CHECK(posix_memalign(&memory, alignment, bytes ? bytes : alignment) == 0, "CUDA out of memory");
  std::memset(memory, kFresh, bytes);
  return memory;
}

struct CardMemory final : c10::Allocator {
  at::DataPtr allocate(size_t bytes) override {
    void* memory = ::allocate(bytes, 64);
    return {memory, memory, &std::free, kCard};
  }
  at::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

void lock_pages(const void* memory, size_t bytes) {
  std::lock_guard<std::mutex> guard(lock);
  auto begin = static_cast<const char*>(memory);
  page_locked.insert({begin, begin + bytes});
}

void free_locked(void* memory) {
  {
    std::lock_guard<std::mutex> guard(lock);
    page_locked.erase(page_locked.lower_bound({static_cast<const char*>(memory), nullptr}));
  }
  std::free(memory);
}

struct LockedMemory final : c10::Allocator {
  at::DataPtr allocate(size_t bytes) override {
    void* memory = ::allocate(bytes, 4096);
    lock_pages(memory, bytes ? bytes : 4096);
    return {memory, memory, &free_locked, at::Device(at::DeviceType::CPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return &free_locked; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

CardMemory card_memory;
LockedMemory locked_memory;

bool is_page_locked(const void* memory) {
  std::lock_guard<std::mutex> guard(lock);
  auto place = static_cast<const char*>(memory);
  for (const auto& [begin, end] : page_locked)
    if (begin <= place && place < end) return true;
  return false;
}

// ---- the device, as torch asks for it ----

struct Guard final : c10::impl::DeviceGuardImplInterface {
  at::DeviceType type() const override { return at::DeviceType::CUDA; }
  at::Device exchangeDevice(at::Device) const override { return kCard; }
  at::Device getDevice() const override { return kCard; }
  void setDevice(at::Device) const override {}
  void uncheckedSetDevice(at::Device) const noexcept override {}
  c10::Stream getStream(at::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(at::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getNewStream(at::Device device, int) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override { *event = this_event(); }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
  static void* this_event() { return &card_memory; }  // anything that is not null
};

struct Hooks : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(at::DeviceIndex) const override { return true; }
  at::DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  at::DeviceIndex current_device() const override { return 0; }
  at::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(at::DeviceIndex) const override {}
  at::DeviceIndex exchangeDevice(at::DeviceIndex) const override { return 0; }
  at::DeviceIndex maybeExchangeDevice(at::DeviceIndex) const override { return 0; }
  bool isPinnedPtr(const void* memory) const override { return is_page_locked(memory); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &locked_memory; }
  c10::Allocator* getCUDADeviceAllocator() const override { return &card_memory; }
  at::Device getDeviceFromPtr(void*) const override { return kCard; }
  at::Generator getNewGenerator(at::DeviceIndex) const override { return at::make_generator<at::CPUGeneratorImpl>(); }
  // One sequence of random numbers for both devices, so that what is drawn on either is the same.
  const at::Generator& getDefaultGenerator(at::DeviceIndex) const override { return at::detail::getDefaultCPUGenerator(); }
  void deviceSynchronize(at::DeviceIndex) const override {}
  std::string showConfig() const override { return "a stand-in"; }
};

// What C10_REGISTER_CLASS does, under the name that torch looks up.
const bool registered = [] {
  auto make = [](at::CUDAHooksArgs given) -> std::unique_ptr<at::CUDAHooksInterface> { return std::make_unique<Hooks>(given); };
  at::CUDAHooksRegistry()->Register("CUDAHooks", make, "", c10::REGISTRY_PREFERRED);
  return true;
}();

// ---- copies ----

// The same numbers, as a tensor of the CPU.
at::Tensor host_view(const at::Tensor& tensor) {
  if (!tensor.is_cuda()) return tensor;
  auto begin = static_cast<char*>(tensor.storage().mutable_data());
  auto options = at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU);
  return at::from_blob(begin + tensor.storage_offset() * tensor.itemsize(), tensor.sizes(), tensor.strides(), options);
}

at::Tensor& copy_(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  at::AutoDispatchBelowADInplaceOrView below;
  const bool across = to.device().type() != from.device().type();
  const at::Tensor value = host_view(from).expand(to.sizes());
  if (inside == 0 && across) {
    const bool to_card = to.is_cuda();
    const bool locked = is_page_locked((to_card ? from : to).const_data_ptr());
    if (non_blocking && locked) {
      if (!to_card) {
        TORCH_CHECK(to.is_contiguous(), "the stand-in copies only to whole pieces of memory");
        const Inside kernel;
        {
          std::lock_guard<std::mutex> guard(lock);
          on_their_way.emplace_back(to, value.to(to.scalar_type()).clone());
        }
        std::memset(to.mutable_data_ptr(), kFresh, to.nbytes());
        return to;
      }
    } else {
      host_waits(to_card ? "copy to the device" : "copy to the host");
    }
  }
  const Inside kernel;
  host_view(to).copy_(value);
  return to;
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  at::Tensor destination = to;
  return copy_(destination, from, non_blocking);
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  const Inside kernel;
  at::native::resize_(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

// ---- operations ----

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device>,
                 std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &card_memory, at::DispatchKeySet(at::DispatchKey::CUDA), at::dtype_or_default(dtype),
                                   format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &card_memory, at::DispatchKeySet(at::DispatchKey::CUDA),
                                           at::dtype_or_default(dtype));
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  return at::native::resize_(self, size, format);
}

at::Scalar item(const at::Tensor& self) {
  host_waits("item");
  const Inside kernel;
  at::AutoDispatchBelowADInplaceOrView below;
  return host_view(self).item();
}

bool equal(const at::Tensor& one, const at::Tensor& other) {
  host_waits("equal");
  const Inside kernel;
  return host_view(one).equal(host_view(other));
}

// torch's signature hides that the running statistics change, so the fallback would change copies of them.
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                                                          const std::optional<at::Tensor>& bias,
                                                          const std::optional<at::Tensor>& mean,
                                                          const std::optional<at::Tensor>& variance, bool training,
                                                          double momentum, double epsilon) {
  const Inside kernel;
  auto view = [](const std::optional<at::Tensor>& tensor) -> std::optional<at::Tensor> {
    if (!tensor.has_value() || !tensor->defined()) return std::nullopt;
    TORCH_CHECK(tensor->is_cuda(), "Expected all tensors to be on the same device: batch_norm");
    return host_view(*tensor);
  };
  auto [output, saved_mean, saved_deviation] = at::native_batch_norm(host_view(input), view(weight), view(bias), view(mean),
                                                                     view(variance), training, momentum, epsilon);
  return {output.to(kCard), saved_mean.to(kCard), saved_deviation.to(kCard)};
}

void record_stream(at::Tensor&, c10::Stream) {}

// The shapes of what these return depend on values.
const std::set<std::string> waiting = {"aten::nonzero",      "aten::masked_select",      "aten::_unique2",
                                       "aten::unique_dim",   "aten::unique_consecutive", "aten::repeat_interleave",
                                       "aten::bincount"};
const std::set<std::string> indexing = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"};

struct Arguments {
  std::vector<at::Tensor> all, listed;

  explicit Arguments(c10::ArrayRef<c10::IValue> values) {
    for (const c10::IValue& value : values) {
      if (value.isTensor()) {
        add(value.toTensor(), false);
      } else if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorVector()) add(tensor, true);
      } else if (value.isList()) {
        for (const c10::IValue& each : value.toListRef())
          if (each.isTensor()) add(each.toTensor(), true);
      }
    }
  }

  void add(const at::Tensor& tensor, bool in_list) {
    if (!tensor.defined()) return;
    all.push_back(tensor);
    if (in_list) listed.push_back(tensor);
  }
};

void check(const std::string& name, const Arguments& given, const c10::ArrayRef<c10::IValue> values) {
  const bool indexes = indexing.count(name) > 0;
  for (const at::Tensor& tensor : given.all) {
    if (!tensor.is_cpu() || tensor.dim() == 0) continue;  // a single number of the host is an argument of the kernel
    TORCH_CHECK(indexes, "Expected all tensors to be on the same device: ", name, " got a ", tensor.scalar_type(), " tensor of ",
                tensor.sizes(), " on the cpu");
    host_waits("index from the host");
  }
  if (waiting.count(name)) host_waits(name);
  if (!indexes || name == "aten::index") return;  // to index by a mask, torch calls nonzero
  for (const at::Tensor& index : given.listed) {
    if (index.scalar_type() != at::kBool && index.scalar_type() != at::kByte) continue;
    // To set one number of the host by a mask, torch uses masked_fill.
    const bool fills =
        values.size() > 2 && values[2].isTensor() && values[2].toTensor().is_cpu() && values[2].toTensor().numel() == 1;
    if (!fills) host_waits(name + " by a mask");
  }
}

void on_the_cpu(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const auto values = torch::jit::last(*stack, operation.schema().arguments().size());
  check(operation.schema().name(), Arguments(values), values);
  const Inside kernel;
  at::native::cpu_fallback(operation, stack);
}

TORCH_LIBRARY_IMPL(_, CUDA, module) { module.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, module) {
  module.impl("empty.memory_format", TORCH_FN(empty));
  module.impl("empty_strided", TORCH_FN(empty_strided));
  module.impl("resize_", TORCH_FN(resize_));
  module.impl("copy_", TORCH_FN(copy_));
  module.impl("_copy_from", TORCH_FN(copy_from));
  module.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  module.impl("_local_scalar_dense", TORCH_FN(item));
  module.impl("equal", TORCH_FN(equal));
  module.impl("native_batch_norm", TORCH_FN(batch_norm));
  module.impl("record_stream", TORCH_FN(record_stream));
  module.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  module.impl("view", TORCH_FN(at::native::view));
  module.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  module.impl("unfold", TORCH_FN(at::native::unfold));
}

}  // namespace

extern "C" {
// Call it when torch's libraries are loaded and before torch itself is imported.
void card_install() {
  static c10::impl::DeviceGuardImplRegistrar registrar(at::DeviceType::CUDA, new Guard);
  c10::SetAllocator(at::DeviceType::CUDA, &card_memory, 100);
}
void card_listen(void (*told)(const char* operation)) { listener = told; }  // of each wait
void card_lock_pages(void* memory, size_t bytes) { lock_pages(memory, bytes); }
void card_arrive() { arrive(); }
}
