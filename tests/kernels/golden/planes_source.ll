declare <4 x float> @llvm.masked.load.v4f32.p0(ptr, i32, <4 x i1>, <4 x float>)

define void @piece(ptr noalias %planes, ptr noalias %offsets, i64 %tokens, ptr noalias %inputs, ptr noalias %outputs, i64 %image, i64 %start, i64 %first, i64 %last, i64 %block) nounwind {
entry:
  %slot12 = alloca i64
  %slot49 = alloca i64
  %v1 = sub i64 100, %start
  %v2 = icmp sge i64 %v1, 8
  br i1 %v2, label %then3, label %join4
then3:
  %v5 = mul i64 %image, 900
  %v6 = add i64 %v5, %start
  %v7 = getelementptr float, ptr %planes, i64 %v6
  %v8 = mul i64 %block, 16
  %v9 = getelementptr i32, ptr %offsets, i64 %v8
  %v10 = icmp eq i64 %block, 1
  %v11 = select i1 %v10, i64 14, i64 16
  store i64 0, ptr %slot12
  br label %head13
head13:
  %v16 = load i64, ptr %slot12
  %v17 = icmp slt i64 %v16, %v11
  br i1 %v17, label %body14, label %end15
body14:
  %v18 = getelementptr i32, ptr %v9, i64 %v16
  %v19 = load i32, ptr %v18, align 4
  %v20 = zext i32 %v19 to i64
  %v21 = getelementptr float, ptr %v7, i64 %v20
  %v22 = mul i64 %v16, 8
  %v23 = getelementptr float, ptr %inputs, i64 %v22
  %v24 = getelementptr float, ptr %v21, i64 0
  %v25 = load <4 x float>, ptr %v24, align 4
  %v26 = getelementptr float, ptr %v23, i64 0
  store <4 x float> %v25, ptr %v26, align 4
  %v27 = getelementptr float, ptr %v21, i64 4
  %v28 = load <4 x float>, ptr %v27, align 4
  %v29 = getelementptr float, ptr %v23, i64 4
  store <4 x float> %v28, ptr %v29, align 4
  %v30 = add nsw i64 %v16, 1
  store i64 %v30, ptr %slot12
  br label %head13
end15:
  br label %join4
join4:
  %v31 = icmp slt i64 %v1, 8
  br i1 %v31, label %then32, label %join33
then32:
  %v34 = sub i64 %v1, 0
  %v35 = insertelement <4 x i64> poison, i64 %v34, i64 0
  %v36 = shufflevector <4 x i64> %v35, <4 x i64> poison, <4 x i32> zeroinitializer
  %v37 = icmp slt <4 x i64> <i64 0, i64 1, i64 2, i64 3>, %v36
  %v38 = sub i64 %v1, 4
  %v39 = insertelement <4 x i64> poison, i64 %v38, i64 0
  %v40 = shufflevector <4 x i64> %v39, <4 x i64> poison, <4 x i32> zeroinitializer
  %v41 = icmp slt <4 x i64> <i64 0, i64 1, i64 2, i64 3>, %v40
  %v42 = mul i64 %image, 900
  %v43 = add i64 %v42, %start
  %v44 = getelementptr float, ptr %planes, i64 %v43
  %v45 = mul i64 %block, 16
  %v46 = getelementptr i32, ptr %offsets, i64 %v45
  %v47 = icmp eq i64 %block, 1
  %v48 = select i1 %v47, i64 14, i64 16
  store i64 0, ptr %slot49
  br label %head50
head50:
  %v53 = load i64, ptr %slot49
  %v54 = icmp slt i64 %v53, %v48
  br i1 %v54, label %body51, label %end52
body51:
  %v55 = getelementptr i32, ptr %v46, i64 %v53
  %v56 = load i32, ptr %v55, align 4
  %v57 = zext i32 %v56 to i64
  %v58 = getelementptr float, ptr %v44, i64 %v57
  %v59 = mul i64 %v53, 8
  %v60 = getelementptr float, ptr %inputs, i64 %v59
  %v61 = getelementptr float, ptr %v58, i64 0
  %v62 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %v61, i32 4, <4 x i1> %v37, <4 x float> <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>)
  %v63 = getelementptr float, ptr %v60, i64 0
  store <4 x float> %v62, ptr %v63, align 4
  %v64 = getelementptr float, ptr %v58, i64 4
  %v65 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %v64, i32 4, <4 x i1> %v41, <4 x float> <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>)
  %v66 = getelementptr float, ptr %v60, i64 4
  store <4 x float> %v65, ptr %v66, align 4
  %v67 = add nsw i64 %v53, 1
  store i64 %v67, ptr %slot49
  br label %head50
end52:
  br label %join33
join33:
  ret void
}
